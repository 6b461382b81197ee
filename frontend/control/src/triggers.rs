//! Events that cause dumps: added, removed and listed while programs run.
//!
//! The recorder has one list for all its processes. A process gets its own part of it: by a rule of its filter, or a
//! request.

use crate::recording::{Trigger, Watched};
use crate::target::Target;

/// The key of a rule for watched calls in a process.
const WATCH: &str = "watch";

/// Adds an event that causes dumps.
pub(crate) fn add(target: &Target<'_>, spec: &str) -> Result<String, String> {
    let recording = target.recording();
    if recording.triggers().iter().any(|known| known.text == spec) {
        return Err(format!("this trigger exists already: {spec}"));
    }
    let trigger = recording.add_trigger(spec)?;
    let told = match &trigger.watched {
        Watched::ByRecorder => Ok(String::new()),
        Watched::Raised => target.change("raised"),
        Watched::Calls(watch) => watch_calls(target, watch),
    };
    if let Err(problem) = told {
        recording.remove_trigger(trigger.number);
        return Err(problem);
    }
    Ok(format!("added trigger {spec}\n"))
}

/// Sets watched calls in processes. If no process has such functions, none watches.
fn watch_calls(target: &Target<'_>, watch: &str) -> Result<String, String> {
    let told = target.change_rules(|rules| {
        rules.add(WATCH, watch.to_owned());
        Ok(())
    })?;
    let event = watch.split_once(':').map_or(watch, |(_, event)| event);
    let has_effect = |line: &str| {
        let without = line.split_once("without effect: ").map_or("", |(_, rules)| rules);
        !without.split(", ").any(|rule| rule == event)
    };
    if told.lines().any(has_effect) {
        return Ok(told);
    }
    unwatch(target, watch)?;
    Err(format!("{event}: no recordable function has this name; `functions` lists them"))
}

fn unwatch(target: &Target<'_>, watch: &str) -> Result<String, String> {
    target.change_rules(|rules| {
        rules.remove(WATCH, watch);
        Ok(())
    })
}

/// Removes the trigger with this text, or with this number.
pub(crate) fn remove(target: &Target<'_>, which: &str) -> Result<String, String> {
    let recording = target.recording();
    let is_it = |trigger: &Trigger| trigger.text == which || which.parse() == Ok(trigger.number);
    let found = recording.triggers().into_iter().find(is_it);
    let trigger = found.ok_or_else(|| format!("no such trigger: {which}; `trigger list` lists them"))?;
    recording.remove_trigger(trigger.number);
    // A watch that a process may go on with has no effect any more.
    if let Watched::Calls(watch) = &trigger.watched {
        unwatch(target, watch)?;
    }
    Ok(format!("removed trigger {}\n", trigger.text))
}

/// Lists the events that cause dumps, a number and the user's text on each line.
pub(crate) fn list(target: &Target<'_>) -> String {
    target.recording().triggers().iter().map(|trigger| format!("{} {}\n", trigger.number, trigger.text)).collect()
}
