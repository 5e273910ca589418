-- Which of some privileges this role has on objects of the schema, directly, by membership or as the owner; and which of
-- them everybody has, so that they say nothing of what a role is for.
--
-- Parameters: kinds, names and words, one of each for a privilege; functions are named with their arguments' types.
-- Reads the catalogue. Locks: none.
select i.kind, i.name, i.word,
       bool_or(case i.kind
           when 'schema' then has_schema_privilege(n.oid, i.word)
           when 'table' then coalesce(has_table_privilege(c.oid, i.word), false)
           else coalesce(has_function_privilege(p.oid, i.word), false)
       end) as held,
       bool_or(case i.kind
           when 'schema' then has_schema_privilege('public', n.oid, i.word)
           when 'table' then coalesce(has_table_privilege('public', c.oid, i.word), false)
           else coalesce(has_function_privilege('public', p.oid, i.word), false)
       end) as by_all
  from pg_namespace n
 cross join unnest(cast(:kinds as text[]), cast(:names as text[]), cast(:words as text[]))
       with ordinality i (kind, name, word, place)
  left join pg_class c on c.relnamespace = n.oid and i.kind = 'table' and c.relname = i.name
  left join pg_proc p on p.pronamespace = n.oid and i.kind = 'function' and p.proname = split_part(i.name, '(', 1)
 where n.nspname = cast(:schema as text)
 group by i.place, i.kind, i.name, i.word
 order by i.place
