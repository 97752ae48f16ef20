-- Parts of a step by rank, mean in ms.
select
    s.rank as rank, r.host as host, count(*) as steps,
    avg(s.duration_ns) / 1e6 as step_ms,
    avg(s.compute_ns) / 1e6 as compute_ms,
    avg(s.exposed_ns) / 1e6 as exposed_ms,
    avg(s.copy_ns) / 1e6 as copy_ms,
    avg(s.idle_ns) / 1e6 as idle_ms
from steps as s
join ranks as r on r.rank = s.rank
group by s.rank, r.host
order by s.rank
