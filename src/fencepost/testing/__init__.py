"""What tests of programs that use fencepost need."""
