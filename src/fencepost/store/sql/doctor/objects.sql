-- Which of some tables, indexes and functions aren't in the schema.
--
-- Parameters: schema; kinds and names, one of each for an object. Reads the catalogue. Locks: none.
select w.kind, w.name
  from unnest(cast(:kinds as text[]), cast(:names as text[])) with ordinality w (kind, name, place)
  join pg_namespace n on n.nspname = cast(:schema as text)
 where case w.kind
           when 'function' then not exists (select from pg_proc p where p.pronamespace = n.oid and p.proname = w.name)
           else not exists (select from pg_class c where c.relnamespace = n.oid and c.relname = w.name)
       end
 order by w.place
