-- Note every job that ends in an old range from now on (the function says how, and what it locks).
select fencepost.watch_range(cast(:starts_at as timestamptz)) as mine
