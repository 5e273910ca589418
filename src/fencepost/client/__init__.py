"""What a program holds to hand in jobs and to wait for them."""
