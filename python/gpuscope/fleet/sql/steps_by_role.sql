-- Parts of a step by role, mean in ms. Ranks of a role run the same kernels.
select
    r.role as role, count(distinct s.rank) as ranks, min(s.rank) as first_rank,
    avg(s.duration_ns) / 1e6 as step_ms,
    avg(s.compute_ns) / 1e6 as compute_ms,
    avg(s.exposed_ns) / 1e6 as exposed_ms,
    avg(s.copy_ns) / 1e6 as copy_ms,
    avg(s.idle_ns) / 1e6 as idle_ms
from steps as s
join ranks as r on r.rank = s.rank
group by r.role
order by compute_ms desc, role
