-- How often each rank is the last of a collective, and how long the others waited for it.
-- All ranks leave such a collective together, so the shortest call is that of the last rank, whatever the clocks are.
with numbered as (
    select
        communicator, sequence, rank, end_ns - start_ns as spent_ns,
        row_number() over (partition by communicator, sequence order by end_ns - start_ns, rank) as place,
        count(*) over (partition by communicator, sequence) as members
    from collectives
    where kind in ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'barrier')
),
waits as (
    select
        communicator, sequence,
        max(case when place = 1 then rank end) as last_rank,
        min(case when place = 2 then spent_ns end) - min(spent_ns) as lead_ns,
        sum(spent_ns) - count(*) * min(spent_ns) as waited_ns
    from numbered
    where members > 1
    group by communicator, sequence
)
select
    last_rank, count(*) as times_last, avg(lead_ns) / 1e6 as mean_lead_ms, sum(waited_ns) / 1e9 as waited_s
from waits
group by last_rank
order by waited_s desc, last_rank
