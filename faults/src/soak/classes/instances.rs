//! What happens to instances.

use std::time::Duration;

use anyhow::{Result, ensure};
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::Site;
use crate::clock::{now, pass};
use crate::rows::{held, reserve};

pub(super) fn killed(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    let rig = &site.rig;
    let victim = random.random_range(0..3);
    reserve(&rig.instances[victim], "open", 500)?;
    let last = now();
    rig.instances[victim].kill9();
    pass((last + rig.settings.lease + Duration::from_secs(1)).saturating_sub(now()));
    let stuck = held(&rig.instances[(victim + 1) % 3], "open")?;
    rig.instances[victim].restart();
    ensure!(stuck == 0, "{stuck} reservations are held after lease + 1 s");
    Ok(())
}

/// What it had reserved runs out meanwhile, and it knows when it wakes.
pub(super) fn frozen(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    let rig = &site.rig;
    let victim = random.random_range(0..3);
    reserve(&rig.instances[victim], "paused", 100)?;
    rig.instances[victim].freeze();
    pass(Duration::from_secs(10));
    let stuck = held(&rig.instances[(victim + 1) % 3], "paused");
    rig.instances[victim].thaw();
    let (stuck, own) = (stuck?, held(&rig.instances[victim], "paused")?);
    ensure!(stuck == 0 && own == 0, "{stuck} of its reservations are held, and {own} when it wakes");
    Ok(())
}

/// None of them is taken up, and requests go on under the last good one.
pub(super) fn bad_config(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    let instance = &site.rig.instances[0];
    let good = std::fs::read_to_string(instance.config())?;
    // Half a file may be a whole one: what is cut inside a bracket is not.
    let cut = &good[..good.rfind('}').unwrap_or_default()];
    let wrong = [cut, "policies: [", "", "store: 7", "\0\0", "policies: { a: { rules: [] } }", "limts: {}"];
    for text in wrong {
        std::fs::write(instance.config(), text)?;
        instance.reload();
        pass(Duration::from_millis(200));
    }
    std::fs::write(instance.config(), good)?;
    instance.reload();
    Ok(())
}

pub(super) fn rolling(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    for instance in &site.rig.instances {
        let status = instance.terminate()?;
        ensure!(status.success(), "an instance that was told to stop ended with {status}");
        instance.restart();
        instance.await_shared()?;
        pass(Duration::from_millis(500));
    }
    Ok(())
}
