//! Three instances under load, and every class of fault, in an order that a seed decides.

mod classes;
mod event;
mod site;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};

use self::classes::{CLASSES, Class, FIRST, LAST, Loss};
use self::event::Event;
use self::site::Site;
use crate::clock::{now, pass};
use crate::ledger::Label;
use crate::load::{Load, Mix};
use crate::report::{self, Line, table_of};
use crate::rig::Figures;
use crate::saved;

/// A shorter soak does not go on the page.
const WHOLE: f64 = 10.0;
/// After the last fault: all is as it was by then.
const AFTERWARDS: Duration = Duration::from_secs(5);
/// How long nothing happens before it is measured what is left of all of it.
const CALM: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) minutes: f64,
    pub(crate) seed: u64,
}

impl Plan {
    pub(crate) fn of(arguments: &[&str]) -> Result<Plan> {
        let mut plan = Plan { minutes: 10.0, seed: 1 };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let value = words.next().with_context(|| format!("{word} needs a number"))?;
            match *word {
                "--minutes" => plan.minutes = value.parse().context("minutes are a number")?,
                "--seed" => plan.seed = value.parse().context("a seed is a whole number")?,
                other => bail!("unknown argument {other}; there are --minutes and --seed"),
            }
        }
        Ok(plan)
    }

    fn share(self, part: f64) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0 * part)
    }
}

pub(crate) fn run(plan: Plan) -> Result<bool> {
    println!(
        "seed {}, {} minutes; the same again: cargo xtask soak --minutes {} --seed {}",
        plan.seed, plan.minutes, plan.minutes, plan.seed
    );
    let mut random = SmallRng::seed_from_u64(plan.seed);
    let mut site = Site::start()?;
    let settings = site.rig.settings.clone();
    let begun = now();
    let mut load = Load::start(&site.rig, Mix::everything(settings.limit, settings.window), plan.seed)?;

    // No fault, to know what is usual.
    pass(plan.share(0.1));
    let mut events = vec![Event::calm("no fault, at the start", begun, now())];
    let mut problems = Vec::new();
    // What is kept of subjects is bounded, and a crowd fills it: what comes on top of that is growth.
    play(&FIRST, &mut site, &load, &mut random, &mut events, &mut problems);
    let before = site.figures(&load);

    let until = begun + plan.share(0.75);
    let mut schedule: Vec<&Class> = CLASSES.iter().collect();
    schedule.shuffle(&mut random);
    let mut drawn = 0;
    while let Some(class) = next(&schedule, drawn, until, &mut random) {
        drawn += 1;
        play(class, &mut site, &load, &mut random, &mut events, &mut problems);
    }
    // All of them have lived through everything; after the restart nothing could be seen any more.
    let still = now();
    pass(CALM.min(plan.share(0.1)));
    events.push(Event::calm("no fault, after all of them", still, now()));
    let after = site.figures(&load);
    let refused = load.refused();
    play(&LAST, &mut site, &load, &mut random, &mut events, &mut problems);

    let calm = now();
    pass(begun.saturating_add(plan.share(1.0)).saturating_sub(now()).max(Duration::from_secs(10)));
    events.push(Event::calm("no fault, at the end", calm, now()));
    load.stop();
    let refused = load.refused() - refused;
    pass(settings.lease + Duration::from_secs(1));
    let open = site.open_reservations()?;

    let entries = load.ledger.entries();
    let mut rows: Vec<(String, Vec<Line>)> =
        events.iter().map(|event| (event.title(begun), event.judge(&entries, &site.rig))).collect();
    let mut whole = problems;
    whole.extend(event::whole(&entries, &site.rig, &events)?);
    whole.push(Line::none("connections refused in the rolling restart", refused, ""));
    whole.push(Line::none("reservations open after their lease + 1 s", open, ""));
    let late = entries.iter().filter(|entry| entry.sent >= calm + AFTERWARDS && entry.label != Label::Shared).count();
    whole.push(Line::none("not decided by Redis, from 5 s after the last fault on", late as u64, ""));
    whole.extend(growth(before, after));
    rows.push(("all of it".to_owned(), whole));
    let holds = rows.iter().flat_map(|(_, lines)| lines).all(|line| line.holds);
    let words = if holds { "all holds" } else { "something does not hold" };
    let took = now().saturating_sub(begun).as_secs_f64();
    let made = format!("Seed {}: {words}; {} answers in {took:.0} s.\n\n{}", plan.seed, entries.len(), table_of(&rows));
    println!("\n{made}");
    saved::save_soak(plan.seed, &rows)?;
    if plan.minutes >= WHOLE {
        report::write(report::SOAK, &made)?;
    }
    Ok(holds)
}

/// Every class once, then whichever the seed says, while there is time.
fn next<'a>(schedule: &[&'a Class], drawn: usize, until: Duration, random: &mut SmallRng) -> Option<&'a Class> {
    match schedule.get(drawn) {
        Some(class) => Some(class),
        None if now() < until => schedule.choose(random).copied(),
        None => None,
    }
}

fn play(
    class: &Class,
    site: &mut Site,
    load: &Load,
    random: &mut SmallRng,
    events: &mut Vec<Event>,
    problems: &mut Vec<Line>,
) {
    // Faults meet whatever the machine is just doing.
    pass(Duration::from_millis(random.random_range(0..1_000)));
    let begun = now();
    println!("{:6.1} s  {}", begun.as_secs_f64(), class.name);
    let problem = (class.run)(site, random);
    let ended = now();
    let restored = problem.and_then(|()| site.rig.await_shared()).and_then(|()| match class.loss {
        Loss::Everything => load.sign_in(&site.rig),
        Loss::LastSecond | Loss::Nothing => Ok(()),
    });
    events.push(Event { class: *class, begun, ended, restored: now() });
    site.await_replica();
    if let Err(error) = restored {
        problems.push(Line::new(class.name, "runs to its end", format!("{error:#}"), false));
    }
    // The windows of one fault are over before the next.
    pass(site.rig.settings.window.saturating_sub(now().saturating_sub(ended)));
}

fn growth(before: Figures, after: Figures) -> Vec<Line> {
    let share = after.rss_mib / before.rss_mib - 1.0;
    let memory = format!("{:.0} → {:.0} MiB", before.rss_mib, after.rss_mib);
    let count =
        |figure, before: usize, after: usize| Line::new(figure, "0", format!("{before} → {after}"), after <= before);
    vec![
        Line::new("growth of memory, all instances", "10 %", memory, share <= 0.10),
        count("growth of descriptors", before.descriptors, after.descriptors),
        count("growth of threads", before.threads, after.threads),
        count("growth of tasks", before.tasks, after.tasks),
    ]
}
