//! The three processes of tributary: a source, and two sinks that share both groups.

use std::fs;
use std::path::{Path, PathBuf};

use harness::Error;
use harness::configuration::Configuration;
use harness::process::{Output, Part, Tributary, describe, run};
use harness::servers::Role;

use crate::databases::{MONOLITH, NEW_HOME, scripts};
use crate::stage::Stage;

/// What stands before every topic and group, as stack/demo/tributary.toml says.
pub(crate) const PREFIX: &str = "demo";
/// The groups that it has.
pub(crate) const GROUPS: [&str; 2] = ["rdb", "redis"];

/// One of the processes.
pub(crate) struct Member {
    tributary: Tributary,
    /// Whether it is away because we wanted it so.
    killed: bool,
}

impl Member {
    /// `kill -9`.
    pub(crate) async fn kill9(&mut self) -> Result<(), Error> {
        self.killed = true;
        self.tributary.kill9().await
    }

    /// Starts it again.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.tributary.restart()?;
        self.killed = false;
        Ok(())
    }
}

/// All three.
pub(crate) struct Crew {
    pub(crate) source: Member,
    pub(crate) sinks: [Member; 2],
    configuration: Configuration,
    folder: PathBuf,
}

impl Crew {
    /// Starts them with the demo's configuration; what is new each time comes from the environment.
    pub(crate) fn start(stage: &Stage<'_>, folder: &Path) -> Result<Crew, Error> {
        let file = scripts().join("tributary.toml");
        let text = fs::read_to_string(&file).map_err(Error::during(format!("read {}", file.display())))?;
        let mut configuration = Configuration::parse(&text)?;
        configuration
            .environment("TRIBUTARY_KAFKA__BROKERS", &format!("kafka://{}", stage.kafka.addresses()))
            .environment("TRIBUTARY_SOURCE__URL", &stage.databases.source.address().url(Role::Source, MONOLITH))
            .environment("TRIBUTARY_SOURCE__PASSWORD", Role::Source.password())
            .environment("TRIBUTARY_TARGET__URL", &stage.databases.target.address().url(Role::Target, NEW_HOME))
            .environment("TRIBUTARY_TARGET__PASSWORD", Role::Target.password())
            .environment("TRIBUTARY_REDIS__URL", &stage.redis.address().url(0));
        let member = |name, part| {
            let tributary = Tributary::start(name, part, configuration.clone(), folder)?;
            Ok::<_, Error>(Member { tributary, killed: false })
        };
        Ok(Crew {
            source: member("source", Part::Source)?,
            sinks: [member("first-sink", Part::Sink)?, member("second-sink", Part::Sink)?],
            configuration,
            folder: folder.to_owned(),
        })
    }

    /// Runs one of tributary's other commands to its end.
    pub(crate) async fn command(&self, name: &str) -> Result<Output, Error> {
        run(&[name], &self.configuration, &self.folder).await
    }

    /// An error if one of them has ended by itself.
    pub(crate) fn all_run(&mut self) -> Result<(), Error> {
        let mut alive = self.members().into_iter().filter(|member| !member.killed);
        alive.try_for_each(|Member { tributary, .. }| match tributary.ended() {
            None => Ok(()),
            Some(status) => {
                let (name, how, tail) = (tributary.name(), describe(status), tributary.tail());
                Err(Error::new(format!("the {name} ended by itself, {how}; its log ends:\n{tail}")))
            }
        })
    }

    /// The ends of their logs, for whoever must find out what went wrong.
    pub(crate) fn tails(&mut self) -> String {
        let tail = |Member { tributary, .. }: &mut Member| {
            format!("\n--- log of the {}\n{}", tributary.name(), tributary.tail())
        };
        self.members().into_iter().map(tail).collect()
    }

    /// Asks all three to end, and waits.
    pub(crate) async fn stop(&mut self) -> Result<(), Error> {
        for member in self.members() {
            member.tributary.stop().await?;
        }
        Ok(())
    }

    fn members(&mut self) -> [&mut Member; 3] {
        let Crew { source, sinks: [first, second], .. } = self;
        [source, first, second]
    }
}
