-- Collectives by kind and size: time of a call, and bus bandwidth in GB/s by the call of the last rank, which waits least.
-- The size is the message of one rank as NCCL counts it: the input of an all_gather, the output of a reduce_scatter.
with calls as (
    select
        communicator, sequence, kind, max(size) as members, max(bytes) as message_bytes,
        avg(end_ns - start_ns) as mean_ns, min(end_ns - start_ns) as least_ns
    from collectives
    group by communicator, sequence, kind
),
rated as (
    select
        kind, members, message_bytes, mean_ns, least_ns,
        case
            when kind = 'all_reduce' then 2e0 * (members - 1) / nullif(members, 0)
            when kind in ('all_gather', 'reduce_scatter') then 1e0 * (members - 1)
            when kind = 'all_to_all' then 1e0 * (members - 1) / nullif(members, 0)
            when kind in ('broadcast', 'reduce', 'send', 'recv') then 1e0
        end as factor
    from calls
)
select
    kind, members, message_bytes, count(*) as call_count, avg(mean_ns) / 1e6 as mean_ms, avg(least_ns) / 1e6 as least_ms,
    case when members > 1 and message_bytes > 0
        then sum(message_bytes * factor) / nullif(sum(least_ns), 0) end as bus_gb_s
from rated
group by kind, members, message_bytes
order by sum(mean_ns) desc, kind, members, message_bytes
