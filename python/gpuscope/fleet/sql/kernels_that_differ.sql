-- Kernels whose mean duration differs most between ranks, by the time that the slowest rank loses to the fastest.
with durations as (
    select
        kernel, name, rank, count as calls, total_ns / nullif(count, 0) as each_ns,
        row_number() over (partition by kernel order by total_ns / nullif(count, 0), rank) as from_fastest,
        row_number() over (partition by kernel order by total_ns / nullif(count, 0) desc, rank) as from_slowest
    from kernel_stats
    where lower(name) not like '%nccl%'
),
ends as (
    select
        kernel, min(name) as kernel_name, count(*) as ranks,
        max(case when from_fastest = 1 then rank end) as fastest_rank, min(each_ns) / 1e3 as fastest_us,
        max(case when from_slowest = 1 then rank end) as slowest_rank, max(each_ns) / 1e3 as slowest_us,
        max(case when from_slowest = 1 then calls end) as slowest_calls
    from durations
    group by kernel
)
select
    kernel_name, ranks, fastest_rank, fastest_us, slowest_rank, slowest_us,
    (slowest_us - fastest_us) * slowest_calls / 1e3 as lost_ms
from ends
where ranks > 1
order by lost_ms desc, kernel_name
limit 20
