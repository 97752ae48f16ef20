-- What hosts did while their GPU was idle before a collective.
select
    reason, count(distinct rank) as ranks, count(*) as times, sum(end_ns - start_ns) / 1e6 as total_ms,
    max(end_ns - start_ns) / 1e6 as longest_ms
from reasons
group by reason
order by total_ms desc, reason
