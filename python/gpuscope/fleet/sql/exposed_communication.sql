-- Communication by rank: its share of the steps, the exposed share, and how much of it runs beside compute.
select
    rank,
    sum(communication_ns) / nullif(sum(duration_ns), 0) as communication_share,
    sum(exposed_ns) / nullif(sum(duration_ns), 0) as exposed_share,
    1 - sum(exposed_ns) / nullif(sum(communication_ns), 0) as overlapped
from steps
group by rank
order by exposed_share desc, rank
