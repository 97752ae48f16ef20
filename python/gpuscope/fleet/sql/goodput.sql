-- Of the recorded GPU time: the shares in steps and in compute, and the GPU-hours that compute did not use.
with totals as (
    select rank, sum(duration_ns) as in_steps_ns, sum(compute_ns) as computed_ns
    from steps
    group by rank
)
select
    count(*) as ranks,
    sum(r.end_ns - r.start_ns) / 36e11 as gpu_hours,
    sum(t.in_steps_ns) / nullif(sum(r.end_ns - r.start_ns), 0) as in_steps,
    sum(t.computed_ns) / nullif(sum(r.end_ns - r.start_ns), 0) as goodput,
    (sum(r.end_ns - r.start_ns) - sum(t.computed_ns)) / 36e11 as lost_gpu_hours
from totals as t
join ranks as r on r.rank = t.rank
