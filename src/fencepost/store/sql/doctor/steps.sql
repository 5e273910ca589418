-- The steps that were applied to the schema.
select v.number, v.name, v.checksum, v.breaking, v.applied_at from fencepost.schema_version v order by v.number
