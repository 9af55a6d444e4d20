//! How busy a machine is, from the texts that Linux gives: CPU and memory, within the limits of
//! control groups (version 1 and 2).
//!
//! Reading the files is the caller's; here is what they mean. A control group limits those below it
//! too, so the caller passes the files of every level from its own group up to the root, and the
//! level that is nearest to its limit counts. What cannot be read counts as no limit.

/// Texts of one control group; empty where there is no such file.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Version 2: `cpu.max`. Version 1: `cpu.cfs_quota_us`, a space, `cpu.cfs_period_us`.
    pub cpu_limit: String,
    /// CPU time used by the group, in microseconds.
    pub cpu_used_us: Option<u64>,
    /// `memory.max` or `memory.limit_in_bytes`.
    pub memory_limit: String,
    /// `memory.current` or `memory.usage_in_bytes`.
    pub memory_used: String,
    /// `memory.stat`.
    pub memory_stat: String,
}

/// One look at the machine.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Of a monotonic clock, in microseconds.
    pub at_us: u64,
    /// `/proc/stat`.
    pub stat: String,
    /// `/proc/meminfo`.
    pub meminfo: String,
    /// From the process's own group up to the root.
    pub groups: Vec<Group>,
}

/// How busy the machine was between two looks, or as much of it as this server may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Load {
    /// 0 to 1000.
    pub cpu_permille: u32,
    pub memory_used: u64,
    /// What `memory_used` can grow to; 0: not known.
    pub memory_limit: u64,
}

/// The load between `before` and `now`.
pub fn load(before: &Sample, now: &Sample) -> Load {
    let (memory_used, memory_limit) = memory(now);
    Load {
        cpu_permille: cpu_permille(before, now),
        memory_used,
        memory_limit,
    }
}

/// The worst of the whole machine and every group with a quota: whichever is used up slows us.
fn cpu_permille(before: &Sample, now: &Sample) -> u32 {
    let mut worst = 0;
    if let (Some((busy0, total0)), Some((busy1, total1))) = (ticks(&before.stat), ticks(&now.stat))
    {
        worst = permille(busy1.saturating_sub(busy0), total1.saturating_sub(total0));
    }
    let elapsed_us = now.at_us.saturating_sub(before.at_us);
    for (earlier, group) in before.groups.iter().zip(&now.groups) {
        let used = group.cpu_used_us.zip(earlier.cpu_used_us);
        if let (Some((quota, period)), Some((used1, used0))) = (quota(&group.cpu_limit), used) {
            let allowed = u128::from(elapsed_us) * u128::from(quota) / u128::from(period);
            let allowed = u64::try_from(allowed).unwrap_or(u64::MAX);
            worst = worst.max(permille(used1.saturating_sub(used0), allowed));
        }
    }
    worst
}

fn permille(part: u64, whole: u64) -> u32 {
    let share = u128::from(part) * 1000 / u128::from(whole.max(1));
    share.min(1000) as u32
}

/// Busy and all ticks since boot: user, nice, system, idle, iowait, irq, softirq, steal. The time of
/// guests is contained in user and nice.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
    let total: u64 = ticks.iter().sum();
    Some((total.saturating_sub(idle), total))
}

/// Microseconds of CPU time per period, and the period. None without a limit ("max", or -1).
fn quota(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_whitespace();
    let quota: u64 = fields.next()?.parse().ok()?;
    let period: u64 = fields.next()?.parse().ok()?;
    (quota > 0 && period > 0).then_some((quota, period))
}

/// Used bytes and limit of the level that has least left.
fn memory(sample: &Sample) -> (u64, u64) {
    let total = field(&sample.meminfo, "MemTotal:").unwrap_or(0) * 1024;
    let available = field(&sample.meminfo, "MemAvailable:").unwrap_or(0) * 1024;
    let machine = (total.saturating_sub(available), total);
    let limited = sample.groups.iter().filter_map(|group| {
        let limit: u64 = group.memory_limit.trim().parse().ok()?;
        let used: u64 = group.memory_used.trim().parse().ok()?;
        // What the kernel would give back before it refuses anything.
        let cache = field(&group.memory_stat, "total_inactive_file")
            .or_else(|| field(&group.memory_stat, "inactive_file"))
            .unwrap_or(0);
        // A number that no machine has stands for no limit in version 1.
        (limit < total).then_some((used.saturating_sub(cache), limit))
    });
    limited
        .chain([machine])
        .min_by_key(|(used, limit)| limit.saturating_sub(*used))
        .unwrap_or_default()
}

/// The number after a word at the beginning of a line.
fn field(text: &str, word: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| {
        let rest = line.strip_prefix(word)?;
        rest.starts_with([' ', '\t']).then_some(rest)
    })?;
    rest.split_whitespace().next()?.parse().ok()
}

/// `usage_usec` of version 2's `cpu.stat`.
pub fn cpu_used_us(cpu_stat: &str) -> Option<u64> {
    field(cpu_stat, "usage_usec")
}

/// Where a controller's files are for this process, from its own group up to the root.
///
/// `cgroup` is `/proc/self/cgroup`, `mountinfo` is `/proc/self/mountinfo`; `controller` is "" for
/// version 2, else the name of version 1's controller.
pub fn group_folders(cgroup: &str, mountinfo: &str, controller: &str) -> Vec<String> {
    let own = cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    });
    let mount = mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split_whitespace().skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split_whitespace();
        let (kind, _, options) = (right.next()?, right.next()?, right.next().unwrap_or(""));
        let fits = match controller {
            "" => kind == "cgroup2",
            name => kind == "cgroup" && options.split(',').any(|option| option == name),
        };
        fits.then_some((root, point))
    });
    let (Some(own), Some((root, point))) = (own, mount) else {
        return Vec::new();
    };
    // Inside a container the mount shows the container's group as its root.
    let below = match root {
        "/" => own,
        root => own.strip_prefix(root).unwrap_or("/"),
    };
    let mut below = below.trim_end_matches('/');
    let mut folders = Vec::new();
    loop {
        folders.push(format!("{point}{below}"));
        match below.rfind('/') {
            Some(cut) => below = &below[..cut],
            None => return folders,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:        8000 kB\nMemFree: 1 kB\nMemAvailable:    6000 kB\n";

    fn sample(at_us: u64, busy: u64, idle: u64, groups: Vec<Group>) -> Sample {
        Sample {
            at_us,
            stat: format!("cpu  {busy} 0 0 {idle} 0 0 0 0 50 0\ncpu0 1 2 3 4\nintr 5\n"),
            meminfo: MEMINFO.to_owned(),
            groups,
        }
    }

    #[test]
    fn a_machine_without_limits() {
        let load = load(
            &sample(0, 100, 100, vec![]),
            &sample(1000, 130, 170, vec![]),
        );
        assert_eq!(load.cpu_permille, 300);
        let (used, limit) = (load.memory_used, load.memory_limit);
        assert_eq!((used, limit), (2000 * 1024, 8000 * 1024));
    }

    #[test]
    fn waiting_for_a_disk_is_not_being_busy() {
        let stat = "cpu  10 10 10 50 20 0 0 0\n";
        assert_eq!(ticks(stat), Some((30, 100)));
        assert_eq!(ticks("nothing"), None);
    }

    fn group(cpu_limit: &str, used_us: u64, memory_limit: &str, memory_used: &str) -> Group {
        Group {
            cpu_limit: cpu_limit.to_owned(),
            cpu_used_us: Some(used_us),
            memory_limit: memory_limit.to_owned(),
            memory_used: memory_used.to_owned(),
            memory_stat: "anon 1\ninactive_file 1000\n".to_owned(),
        }
    }

    /// Half a core of many is used up although the machine is nearly idle.
    #[test]
    fn version_2_limits() {
        let root = Group::default();
        let groups = |used| {
            vec![
                group("max 100000", used, "max\n", "5\n"),
                group("50000 100000\n", used, "2000000\n", "1501000\n"),
                root.clone(),
            ]
        };
        let before = sample(1_000_000, 0, 0, groups(0));
        let now = sample(2_000_000, 50, 950, groups(450_000));
        let load = load(&before, &now);
        assert_eq!(load.cpu_permille, 900);
        let (used, limit) = (load.memory_used, load.memory_limit);
        assert_eq!((used, limit), (1_500_000, 2_000_000));
    }

    #[test]
    fn version_1_limits() {
        let unlimited = "9223372036854771712\n";
        let groups = |used| {
            let mut own = group("200000 100000", used, unlimited, "77\n");
            own.memory_stat = "inactive_file 1\ntotal_inactive_file 7\n".to_owned();
            vec![own, group("-1 100000", used, "3000000", "2000000")]
        };
        let load = load(
            &sample(0, 0, 0, groups(1000)),
            &sample(1_000_000, 10, 990, groups(501_000)),
        );
        assert_eq!(load.cpu_permille, 250);
        assert_eq!(
            (load.memory_used, load.memory_limit),
            (1_999_000, 3_000_000)
        );
    }

    #[test]
    fn memory_of_the_machine_counts_when_less_is_left_of_it() {
        let mut now = sample(0, 0, 0, vec![group("", 0, "7000000", "1000")]);
        now.meminfo = "MemTotal: 8000 kB\nMemAvailable: 10 kB\n".to_owned();
        assert_eq!(memory(&now), (7990 * 1024, 8000 * 1024));
    }

    #[test]
    fn folders_of_version_2() {
        let cgroup = "0::/system.slice/pg.service\n";
        let mounts = "25 30 0:22 / /proc rw - proc proc rw\n\
                      29 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let expected = [
            "/sys/fs/cgroup/system.slice/pg.service",
            "/sys/fs/cgroup/system.slice",
            "/sys/fs/cgroup",
        ];
        assert_eq!(group_folders(cgroup, mounts, ""), expected);
        assert!(group_folders(cgroup, mounts, "memory").is_empty());
        assert_eq!(group_folders("0::/\n", mounts, ""), ["/sys/fs/cgroup"]);
    }

    #[test]
    fn folders_of_version_1_in_a_container() {
        let cgroup = "11:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc/inner\n0::/docker/abc\n";
        let mounts = "29 25 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                      30 25 0:27 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n";
        let memory = group_folders(cgroup, mounts, "memory");
        assert_eq!(memory, ["/sys/fs/cgroup/memory"]);
        let cpu = group_folders(cgroup, mounts, "cpu");
        assert_eq!(cpu, ["/sys/fs/cgroup/cpu/inner", "/sys/fs/cgroup/cpu"]);
    }

    #[test]
    fn cpu_time_of_version_2() {
        let text = "usage_usec 123456\nuser_usec 100000\n";
        assert_eq!(cpu_used_us(text), Some(123_456));
    }
}
