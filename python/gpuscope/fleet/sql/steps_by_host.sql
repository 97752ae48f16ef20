-- Parts of a step by host, mean in ms, and the longest compute of a rank.
with parts as (
    select
        rank, avg(duration_ns) / 1e6 as step_ms, avg(compute_ns) / 1e6 as compute_ms,
        avg(exposed_ns) / 1e6 as exposed_ms, avg(idle_ns) / 1e6 as idle_ms
    from steps
    group by rank
)
select
    r.host as host, count(*) as ranks, avg(p.step_ms) as mean_step_ms, avg(p.compute_ms) as mean_compute_ms,
    max(p.compute_ms) as most_compute_ms, avg(p.exposed_ms) as mean_exposed_ms, avg(p.idle_ms) as mean_idle_ms
from parts as p
join ranks as r on r.rank = p.rank
group by r.host
order by mean_compute_ms desc, host
