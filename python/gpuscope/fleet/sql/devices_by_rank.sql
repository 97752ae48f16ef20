-- Clock, power and memory of each GPU, slowest clock first, and its clock relative to the mean of all. Empty: not recorded.
with known as (
    select
        rank, device,
        case when sm_mhz >= 0 then sm_mhz end as clock_mhz,
        case when power_mw >= 0 then power_mw end / 1e3 as power_w,
        case when peak_memory_bytes >= 0 then peak_memory_bytes end / 1e9 as peak_gb
    from devices
)
select
    k.rank as rank, r.host as host, k.device as device, k.clock_mhz as clock_mhz, k.power_w as power_w, k.peak_gb as peak_gb,
    k.clock_mhz / avg(k.clock_mhz) over () as of_mean_clock
from known as k
join ranks as r on r.rank = k.rank
order by of_mean_clock, k.rank, k.device
