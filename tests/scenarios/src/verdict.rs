// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How a scenario ends early, and the checks that end it.

use vkfd_client::{ClientError, Errno};

/// Why a scenario stopped.
#[derive(Debug)]
pub enum Stop {
    /// This host cannot show what the scenario is about.
    Skip(String),
    /// Something is not as it must be.
    Fail(anyhow::Error),
}

impl Stop {
    /// What AMD's driver does not have is no failure there.
    #[must_use]
    pub fn on(self, stock: bool) -> Self {
        let lacks = |cause: &(dyn std::error::Error + 'static)| {
            // AMD's driver knows each of KFD's numbers; others are vkfd's own.
            let (call, errno) = (cause.downcast_ref::<ClientError>(), cause.downcast_ref::<Errno>());
            let unknown = errno.copied().or(call.and_then(ClientError::errno)) == Some(Errno::NOTTY);
            unknown || matches!(call, Some(ClientError::Unsupported(_)))
        };
        match self {
            Self::Fail(error) if stock && error.chain().any(lacks) => Self::Skip(format!("{error:#}")),
            stop => stop,
        }
    }

    /// Puts the present activity in front of a failure's message.
    #[must_use]
    pub fn context(self, what: String) -> Self {
        match self {
            Self::Fail(error) => Self::Fail(error.context(what)),
            skip => skip,
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Fail(error.into())
    }
}

/// Fails the scenario with a message.
#[macro_export]
macro_rules! bail {
    ($($message:tt)+) => {
        return ::core::result::Result::Err($crate::Stop::Fail(::anyhow::anyhow!($($message)+)))
    };
}

/// Fails the scenario unless a condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr $(,)?) => {
        if !$condition {
            $crate::bail!("line {}: not true: {}", line!(), stringify!($condition));
        }
    };
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::bail!($($message)+);
        }
    };
}

/// Fails the scenario unless two values are equal; shows both.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr $(,)?) => {
        match (&$left, &$right) {
            (left, right) if *left == *right => {}
            (left, right) => $crate::bail!(
                "line {}: {} is {left:?}, expected {right:?}", line!(), stringify!($left)
            ),
        }
    };
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) if *left == *right => {}
            (left, right) => $crate::bail!("{}: got {left:?}, expected {right:?}", format_args!($($message)+)),
        }
    };
}
