// SPDX-License-Identifier: GPL-2.0 OR MIT
//! [`library!`] is the shared library that cargo has built of a dependency, as bytes.
//!
//! # Mechanism
//!
//! A package that is `cdylib` and `rlib` at once is compiled by one call of rustc, which writes
//! `libNAME.so` beside `libNAME.rlib`. A program that depends on it is compiled after both are
//! there, and its compiler is told where the rlib is (`--extern NAME=PATH`). This macro runs inside
//! of that compiler and reads the same argument. So the library is the one of this very build,
//! whatever the package comes from (a path, git, a registry), and wherever cargo puts what it
//! builds. Cargo's own way for this, artifact dependencies, is not stable; a build script that
//! calls cargo would compile everything twice.
//!
//! # Limits
//!
//! Where nothing is linked (`cargo check`, clippy, rustdoc, an editor) there is no library yet, and
//! the macro gives `None`.

use proc_macro::{Literal, TokenStream, TokenTree};
use std::path::Path;

/// `Option<&'static [u8]>`: the shared library of the dependency that is named. `None` only where
/// nothing is linked.
#[proc_macro]
pub fn library(input: TokenStream) -> TokenStream {
    let name = match input.into_iter().next() {
        Some(TokenTree::Ident(name)) => name.to_string(),
        _ => return failure("expected the name of a dependency"),
    };
    let Some(rlib) = rlib(std::env::args(), &name) else {
        return parse("::core::option::Option::None::<&'static [u8]>");
    };
    let library = Path::new(&rlib).with_extension("so");
    match library.to_str() {
        // Through include_bytes, so that cargo knows the file as one that this was made from.
        Some(path) if library.is_file() => {
            let path = Literal::string(path);
            parse(&format!("::core::option::Option::Some::<&'static [u8]>(::core::include_bytes!({path}))"))
        }
        _ => failure(&format!("there is no {}: is {name} a cdylib as well?", library.display())),
    }
}

/// The compiler's arguments for a dependency, if that is something to link.
fn rlib(arguments: impl Iterator<Item = String>, name: &str) -> Option<String> {
    // Too many arguments for a command line are in a file.
    let arguments = arguments.flat_map(|argument| match argument.strip_prefix('@').map(std::fs::read_to_string) {
        Some(Ok(file)) => file.lines().map(str::to_owned).collect(),
        _ => vec![argument],
    });
    let of = |argument: String| {
        let argument = argument.strip_prefix("--extern=").unwrap_or(&argument);
        let (dependency, path) = argument.split_once('=')?;
        // `priv,noprelude:NAME`.
        let dependency = dependency.rsplit(':').next()?;
        (dependency == name && path.ends_with(".rlib")).then(|| path.to_owned())
    };
    arguments.filter_map(of).next()
}

fn parse(code: &str) -> TokenStream {
    code.parse().unwrap_or_default()
}

fn failure(why: &str) -> TokenStream {
    parse(&format!("::core::compile_error!({})", Literal::string(why)))
}

#[cfg(test)]
mod tests {
    use super::rlib;

    fn of(arguments: &[&str]) -> Option<String> {
        rlib(arguments.iter().map(|argument| (*argument).to_owned()), "some_library")
    }

    #[test]
    fn the_compilers_argument_says_where_it_is() {
        for (arguments, path) in [
            (&["rustc", "--extern", "some_library=/t/deps/libsome_library.rlib"][..], "/t/deps/libsome_library.rlib"),
            (&["--extern=some_library=/t/a=b/libsome_library-12ab.rlib"], "/t/a=b/libsome_library-12ab.rlib"),
            (&["--extern", "priv,noprelude:some_library=/x.rlib", "--out-dir", "/y"], "/x.rlib"),
        ] {
            assert_eq!(of(arguments).as_deref(), Some(path));
        }
    }

    #[test]
    fn where_nothing_is_linked_there_is_none() {
        assert_eq!(of(&["--extern", "some_library=/t/libsome_library-1.rmeta"]), None);
        assert_eq!(of(&["--extern", "other_some_library=/t/x.rlib", "--crate-name", "some_library"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn arguments_may_be_in_a_file() {
        let file = std::env::temp_dir().join(format!("vkfd-arguments-{}", std::process::id()));
        std::fs::write(&file, "--extern\nsome_library=/t/x.rlib\n").unwrap();
        assert_eq!(of(&[&format!("@{}", file.display())]).as_deref(), Some("/t/x.rlib"));
        std::fs::remove_file(file).unwrap();
    }
}
