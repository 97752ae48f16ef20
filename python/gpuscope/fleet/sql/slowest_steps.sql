-- The longest steps, mean over ranks in ms, each with the rank that computes longest in it.
with numbered as (
    select
        step, rank, duration_ns, compute_ns,
        row_number() over (partition by step order by compute_ns desc, rank) as place
    from steps
)
select
    step, count(*) as ranks, avg(duration_ns) / 1e6 as step_ms, avg(compute_ns) / 1e6 as compute_ms,
    max(case when place = 1 then rank end) as slowest_rank, max(compute_ns) / 1e6 as most_compute_ms
from numbered
group by step
order by step_ms desc, step
limit 20
