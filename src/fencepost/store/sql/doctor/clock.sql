-- The time of the database's clock.
select extract(epoch from clock_timestamp())::float8 as now
