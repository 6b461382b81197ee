//! Arguments and results in the page; `tests/golden/values.txt` has them in views and formats.

use rftrace_tests::golden;
use serde_json::json;

use crate::browser::Browser;
use crate::cli::{run, utf8};

/// The arguments of `a`: bytes that are no HTML, no JSON and no UTF-8 if they are taken as they are, and others.
const FIRST: &str = "\"</script><img src=x onerror=\"window.broken=1\">\\\\xff\\u{1b}\\né\", -5, 0xffffffffffffffff, 1.500000, 'x', NULL, \
                     true, GREEN, Some(Pair { n: -7, text: \"a\"\" })";

#[test]
fn the_page_shows_them() {
    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let dir = golden::copy("values");
    let html = dir.path().join("page.html");
    let (code, _, error) = run(&["dump", "--html", utf8(dir.path()), "-o", utf8(&html)]);
    assert_eq!(code, Some(0), "{error}");
    let mut browser = Browser::start();
    browser.open(&format!("file://{}", html.display()));
    let found = browser.value(
        "rftrace.app.trace.tasks[0].lanes.map(lane => [...lane.fn].map((fn, i) => \
         [rftrace.app.trace.functions[fn], ...rftrace.app.trace.valuesOf(lane, i).map(text => text ?? null)]))",
    );
    let expected = json!([
        [["main", null, null]],
        [["a", FIRST, "\"done\""], ["c", null, "1"], ["c", null, "-1"], ["b", "8", null]],
        [["b", "7", null]],
    ]);
    assert_eq!(found, expected);

    // The text for a call, when the mouse is over it, and when it is chosen.
    let place = "(() => { const { timeline } = rftrace.app; const box = timeline.canvas.getBoundingClientRect(); \
                 return [box.left + timeline.x(1100), box.top + AXIS + HEAD + 1.5 * ROW]; })()";
    let at = browser.value(place);
    let at = [0, 1].map(|idx: usize| at[idx].as_f64().expect("a place"));
    browser.mouse("mouseMoved", at, 0, false);
    let lines = browser.value("[...document.getElementById('tooltip').children].map(line => line.textContent)");
    assert_eq!(lines[0], "a");
    assert_eq!((&lines[3], &lines[4]), (&json!(format!("Arguments {FIRST}")), &json!("Result \"done\"")));
    browser.mouse("mousePressed", at, 1, false);
    browser.mouse("mouseReleased", at, 1, false);
    let detail = browser.value("document.getElementById('call').textContent");
    assert!(
        detail.as_str().is_some_and(|text| text.contains(&format!("Arguments {FIRST} · Result \"done\""))),
        "{detail}"
    );
    assert_eq!(browser.value("document.querySelectorAll('img').length + (window.broken ?? 0)"), 0);
    if let Some(picture) = std::env::var_os("RFTRACE_VIEW_PICTURES") {
        browser.mouse("mouseMoved", [at[0] + 1.0, at[1]], 0, false);
        browser.screenshot(&std::path::Path::new(&picture).join("values.png"));
    }
    assert_eq!(browser.complaints, [""; 0]);
}
