-- Variance of the compute time of a step, in ms^2, by role: within ranks (from step to step) and between ranks.
with means as (
    select rank, avg(compute_ns) / 1e6 as mean_ms, var_pop(compute_ns / 1e6) as own_variance
    from steps
    group by rank
)
select
    r.role as role, count(*) as ranks, avg(m.mean_ms) as compute_ms,
    avg(m.own_variance) as within_ranks, var_pop(m.mean_ms) as between_ranks,
    var_pop(m.mean_ms) / nullif(var_pop(m.mean_ms) + avg(m.own_variance), 0) as between_share
from means as m
join ranks as r on r.rank = m.rank
group by r.role
order by between_ranks desc, role
