//! The choice of functions for a branch: patterns of functions, and of modules behind an `@`. Also the functions that
//! can have no hook, by their names.

use rftrace_pattern::Pattern;

use super::entry_outcome::Ends;
use crate::Error;

/// The patterns, and their exceptions.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    wanted: Vec<Wanted>,
    /// Symbols as they stand in files, ascending.
    except: Vec<String>,
    /// True if functions with a compiler's room are chosen.
    pub(super) has_patchable: bool,
    /// True if the program's calls of other modules' functions are recorded.
    pub(super) has_library_calls: bool,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "there all are seen by return addresses"))]
    pub(super) ends: Ends,
}

#[derive(Debug)]
struct Wanted {
    function: Pattern,
    /// `None`: the program.
    module: Option<Pattern>,
}

impl Choice {
    /// Nothing is chosen.
    pub(super) const fn nothing() -> Self {
        Self {
            wanted: Vec::new(),
            except: Vec::new(),
            has_patchable: false,
            has_library_calls: false,
            ends: Ends::Returns,
        }
    }

    /// Reads patterns: `GLOB`, `/REGEX/`, either with `@MODULE`. Functions with a symbol among `except` are left out.
    ///
    /// # Errors
    ///
    /// [`Error::BadFilter`] for a malformed one.
    pub(crate) fn parse<'p>(patterns: impl Iterator<Item = &'p str>, mut except: Vec<String>) -> Result<Self, Error> {
        let wanted = patterns.map(|text| {
            let is_regex = text.starts_with('/') && text.ends_with('/');
            let (function, module) = match text.rsplit_once('@').filter(|_| !is_regex) {
                Some((function, module)) => (function, Some(module)),
                None => (text, None),
            };
            let read = |text: &str| {
                let place = format!("entry branches: {text}");
                Pattern::new(text).map_err(|error| Error::BadFilter { place, problem: error.to_string() })
            };
            Ok(Wanted { function: read(function)?, module: module.map(read).transpose()? })
        });
        except.sort_unstable();
        Ok(Self { wanted: wanted.collect::<Result<_, _>>()?, except, ..Self::nothing() })
    }

    /// The same, with or without the functions with a compiler's room.
    pub(crate) fn patchable(self, has_patchable: bool) -> Self {
        Self { has_patchable, ..self }
    }

    /// The same, and whether calls of other modules' functions are.
    pub(crate) fn library_calls(self, has_library_calls: bool) -> Self {
        Self { has_library_calls, ..self }
    }

    /// The same, and how ends are seen.
    pub(crate) fn ends(self, ends: Ends) -> Self {
        Self { ends, ..self }
    }

    /// True if nothing is chosen.
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty() && !self.has_patchable && !self.has_library_calls
    }

    /// True if there is a pattern.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn names_functions(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns true if the function with this symbol is left out. Ignores LLVM's suffix of symbols made visible to
    /// other parts of a program.
    pub(crate) fn excepts(&self, symbol: &[u8]) -> bool {
        let end = symbol.windows(6).position(|part| part == b".llvm.").unwrap_or(symbol.len());
        self.except.binary_search_by(|except| except.as_bytes().cmp(&symbol[..end])).is_ok()
    }

    /// True if functions of this module, by its file's name, may be chosen.
    pub(crate) fn has_module(&self, module: &str, is_program: bool) -> bool {
        self.wanted.iter().any(|wanted| wanted.has_module(module, is_program))
    }

    /// Returns true if a function of the module is chosen. Its name is requested only if it matters.
    pub(crate) fn has(&self, module: &str, is_program: bool, name: impl FnOnce() -> String) -> bool {
        let mut wanted = self.wanted.iter().filter(|wanted| wanted.has_module(module, is_program)).peekable();
        if wanted.peek().is_none() {
            return false;
        }
        if wanted.clone().any(|wanted| wanted.function.is_everything()) {
            return true;
        }
        let name = name();
        wanted.any(|wanted| wanted.function.matches(&name))
    }
}

impl Wanted {
    /// `libc` stands for `libc.so.6` too.
    fn has_module(&self, module: &str, is_program: bool) -> bool {
        match &self.module {
            None => is_program,
            Some(pattern) => {
                let short = module.split_once(".so").map_or(module, |(short, _)| short);
                pattern.matches(module) || pattern.matches(short)
            }
        }
    }
}

/// True for the name of a function that returns twice, goes on on another stack, or is entered without a call.
pub(super) fn is_special(name: &[u8]) -> bool {
    const NAMES: [&str; 27] = [
        "_start",
        "setjmp",
        "_setjmp",
        "sigsetjmp",
        "__sigsetjmp",
        "__sigjmp_save",
        "longjmp",
        "_longjmp",
        "__longjmp",
        "__longjmp_chk",
        "vfork",
        "__vfork",
        "getcontext",
        "setcontext",
        "swapcontext",
        "__getcontext",
        "__setcontext",
        "__swapcontext",
        "makecontext",
        "__start_context",
        "clone",
        "__clone",
        "clone3",
        "__clone3",
        "__clone_internal",
        "__spawni_child",
        "__restore_rt",
    ];
    let name = name.split(|&byte| byte == b'@').next().unwrap_or_default();
    NAMES.iter().any(|special| special.as_bytes() == name)
}

/// True for the name of a part of an unwinder, libgcc's or LLVM's: it asks for its caller, for the registers kept
/// there, or goes on elsewhere and does not return.
pub(super) fn is_of_unwinder(name: &[u8]) -> bool {
    const BEGINNINGS: [&str; 7] =
        ["_Unwind_", "uw_", "__unw_", "unw_", "unwind_phase", "__libunwind_", "_ZN9libunwind"];
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning.as_bytes()))
}

/// True for the name of a function that no source calls: functions that run the program, and those that compiled code
/// calls, hooks and sanitizers.
pub(super) fn is_of_runtime(name: &[u8]) -> bool {
    const NAMES: [&str; 14] = [
        "mcount",
        "_mcount",
        "__fentry__",
        "_mcleanup",
        "__monstartup",
        "__gmon_start__",
        "__libc_start_main",
        "__cxa_finalize",
        "__stack_chk_fail",
        "__tls_get_addr",
        "__morestack",
        "__cyg_profile_func_enter",
        "__cyg_profile_func_exit",
        "_Jv_RegisterClasses",
    ];
    const BEGINNINGS: [&str; 7] = ["_Unwind_", "_ITM_", "__asan_", "__tsan_", "__msan_", "__ubsan_", "__sanitizer_"];
    NAMES.iter().any(|own| own.as_bytes() == name)
        || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning.as_bytes()))
}

/// True for the name of a function that cannot be hooked at calls from another module: a special one, or one that asks
/// for its caller.
pub(super) fn looks_at_its_caller(name: &[u8]) -> bool {
    const NAMES: [&str; 8] = ["dlopen", "dlmopen", "dlsym", "dlvsym", "dlinfo", "siglongjmp", "savectx", "syscall"];
    is_special(name) || NAMES.iter().any(|special| special.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_functions_and_modules() {
        let choice = Choice::parse(["app_*", "mem*@libc", "*@libfoo.so.1", "/a@b/"].into_iter(), Vec::new()).unwrap();
        let has = |module: &str, is_program, name: &str| choice.has(module, is_program, || name.to_owned());
        assert!(has("app", true, "app_main") && !has("app", true, "memcpy") && has("app", true, "xa@by"));
        assert!(has("libc.so.6", false, "memcpy") && !has("libc.so.6", false, "app_main"));
        assert!(has("libfoo.so.1", false, "anything") && !has("libfoo.so.2", false, "anything"));
        assert!(!choice.has_module("libm.so.6", false));
        assert!(matches!(Choice::parse(["@libc"].into_iter(), Vec::new()), Err(Error::BadFilter { .. })));
    }

    #[test]
    fn symbols_are_left_out() {
        let except = ["_RNvCs1_3std4main", "main"].map(str::to_owned).to_vec();
        let choice = Choice::parse(["*"].into_iter(), except).unwrap();
        assert!(choice.excepts(b"main") && choice.excepts(b"_RNvCs1_3std4main.llvm.12") && !choice.excepts(b"main2"));
    }

    #[test]
    fn what_returns_twice_is_special() {
        assert!(is_of_unwinder(b"uw_init_context_1") && is_of_unwinder(b"unwind_phase2") && !is_of_unwinder(b"unwind"));
        assert!(is_special(b"vfork@@GLIBC_2.2.5") && is_special(b"_setjmp") && !is_special(b"fork"));
        assert!([&b"vfork"[..], b"dlsym", b"syscall"].into_iter().all(looks_at_its_caller));
        assert!(!looks_at_its_caller(b"malloc") && !looks_at_its_caller(b"dlclose"));
        assert!([&b"__fentry__"[..], b"_Unwind_Resume"].into_iter().all(is_of_runtime) && !is_of_runtime(b"exit"));
    }
}
