//! Plans that come from somebody who knows the secret and yet are no plans: refused, or an error in
//! that session, and in no case more.

use parallel_replicas_core::frame::Begin;
use parallel_replicas_tests::scene::Scene;

const QUERY: &str = "SELECT v, count(*), sum(id) FROM t WHERE abs(v) >= 0 AND v <> 7 GROUP BY v";

#[test]
fn a_plan_that_ends_early_is_refused() {
    let mut scene = Scene::start();
    let begin = scene.record(QUERY);
    let length = begin.plan.len();
    for cut in [1, 2, 10, 100, length / 2, length - 20, length - 1] {
        scene.refused("plan", &begin, |begin| begin.plan.truncate(length - cut));
    }
    scene.refused("plan", &begin, |begin| begin.plan.extend(b" {CONST}"));
    scene.end();
}

/// A field less somewhere: PostgreSQL's reader takes all that follows for something else.
#[test]
fn a_plan_that_lacks_a_word_harms_nobody() {
    const ATTEMPTS: usize = 80;
    let mut scene = Scene::start();
    let begin = scene.record(QUERY);
    let text = String::from_utf8(begin.plan.clone()).expect("a plan is text");
    let words: Vec<&str> = text.split(' ').collect();
    let mut rogue = scene.rogue();
    for attempt in 0..ATTEMPTS {
        let missing = 1 + attempt * (words.len() - 2) / ATTEMPTS;
        let mut rest = words.clone();
        rest.remove(missing);
        let changed = Begin {
            plan: rest.join(" ").into_bytes(),
            ..begin.clone()
        };
        let _ = rogue.attempt(&scene.secret, &changed);
        scene.server_lives();
        if rogue.execute("SELECT 1") != Ok(()) {
            rogue = scene.rogue();
        }
    }
    scene.end();
}
