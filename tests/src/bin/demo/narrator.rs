//! Tells what happens, in plain sentences with the time in front, and draws a bar where somebody looks.
//!
//! Knows a terminal from a file: there it prints how far things are every few seconds instead of drawing.

use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a log gets a line about progress.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// The one voice of the demo.
pub(crate) struct Narrator {
    started: Instant,
    /// Absent where nobody looks.
    bar: Option<ProgressBar>,
    /// When the last line was printed.
    last: Mutex<Instant>,
}

impl Narrator {
    pub(crate) fn new() -> Narrator {
        let bar = std::io::stdout().is_terminal().then(|| {
            let style = ProgressStyle::with_template("         {spinner} {msg} {wide_bar:.cyan/dim} {percent:>3} %")
                .expect("the template is well formed");
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stdout()).with_style(style);
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Narrator { started: Instant::now(), bar, last: Mutex::new(Instant::now()) }
    }

    /// One sentence (or a table of several lines).
    pub(crate) fn say(&self, sentence: impl Display) {
        let seconds = self.started.elapsed().as_secs();
        let text = sentence.to_string().replace('\n', "\n         ");
        self.print(&format!("[{seconds:>3} s]  {text}"));
    }

    /// How far the present step is.
    pub(crate) fn show(&self, what: &str, done: i64, of: i64) {
        let done = done.clamp(0, of.max(0));
        match &self.bar {
            Some(bar) => {
                bar.set_length(of.unsigned_abs());
                bar.set_position(done.unsigned_abs());
                bar.set_message(what.to_owned());
            }
            None if self.quiet_for() >= PLAIN_EVERY => self.print(&format!("         {what}: {done} of {of}")),
            None => {}
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn quiet_for(&self) -> Duration {
        self.last.lock().expect("no holder of this lock panics").elapsed()
    }

    fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
        *self.last.lock().expect("no holder of this lock panics") = Instant::now();
    }
}
