-- Messages of each communicator by kind: MB of a rank in a step. Messages of unknown size are not added.
select
    communicator, max(size) as members, kind, min(rank) as first_rank,
    count(*) / nullif(count(distinct rank), 0) as calls_of_rank,
    sum(case when bytes >= 0 and step >= 0 then bytes end) / 1e6
    / nullif(count(distinct rank), 0) / nullif(count(distinct case when step >= 0 then step end), 0) as mb_of_rank_and_step,
    sum(case when bytes < 0 then 1 else 0 end) as unknown_sizes
from collectives
group by communicator, kind
order by mb_of_rank_and_step desc, communicator, kind
