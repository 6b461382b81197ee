//! Arguments and results of functions of the C library, by the standards that define them: their debug information is hardly ever there.
//!
//! Buffers that need not end with a NUL are shown as addresses.

use rftrace_format::values::ValueSpec;

use super::module::{FunctionValues, ModuleValues, Shown};

/// Functions with the same arguments and the same result: their names, then as uftrace spells values.
const KNOWN: [(&str, &str, &str); 88] = [
    // Memory.
    ("malloc valloc", "arg1/u64", "retval/x64"),
    ("calloc memalign aligned_alloc", "arg1/u64,arg2/u64", "retval/x64"),
    ("realloc", "arg1/x64,arg2/u64", "retval/x64"),
    ("reallocarray", "arg1/x64,arg2/u64,arg3/u64", "retval/x64"),
    ("posix_memalign", "arg1/x64,arg2/u64,arg3/u64", "retval/i32"),
    ("free cfree", "arg1/x64", ""),
    ("mmap mmap64", "arg1/x64,arg2/u64,arg3/i32,arg4/x32,arg5/i32,arg6/i64", "retval/x64"),
    ("munmap", "arg1/x64,arg2/u64", "retval/i32"),
    ("mprotect madvise msync", "arg1/x64,arg2/u64,arg3/i32", "retval/i32"),
    ("mremap", "arg1/x64,arg2/u64,arg3/u64,arg4/x32", "retval/x64"),
    ("memcpy memmove mempcpy", "arg1/x64,arg2/x64,arg3/u64", "retval/x64"),
    ("memset", "arg1/x64,arg2/i32,arg3/u64", "retval/x64"),
    ("memcmp bcmp", "arg1/x64,arg2/x64,arg3/u64", "retval/i32"),
    ("memchr memrchr", "arg1/x64,arg2/c,arg3/u64", "retval/x64"),
    ("bzero explicit_bzero", "arg1/x64,arg2/u64", ""),
    // Strings.
    ("strlen", "arg1/s", "retval/u64"),
    ("strnlen", "arg1/x64,arg2/u64", "retval/u64"),
    ("strcpy stpcpy strcat", "arg1/x64,arg2/s", "retval/x64"),
    ("strncpy stpncpy strncat", "arg1/x64,arg2/x64,arg3/u64", "retval/x64"),
    ("strcmp strcasecmp strcoll strverscmp", "arg1/s,arg2/s", "retval/i32"),
    ("strncmp strncasecmp", "arg1/x64,arg2/x64,arg3/u64", "retval/i32"),
    ("strchr strrchr strchrnul index rindex", "arg1/s,arg2/c", "retval/s"),
    ("strstr strcasestr strpbrk", "arg1/s,arg2/s", "retval/s"),
    ("strspn strcspn", "arg1/s,arg2/s", "retval/u64"),
    ("strtok", "arg1/s,arg2/s", "retval/s"),
    ("strdup __strdup", "arg1/s", "retval/s"),
    ("strndup", "arg1/x64,arg2/u64", "retval/s"),
    ("strerror strsignal", "arg1/i32", "retval/s"),
    ("atoi", "arg1/s", "retval/i32"),
    ("atol atoll", "arg1/s", "retval/i64"),
    ("strtol strtoll __isoc23_strtol __isoc23_strtoll", "arg1/s,arg2/x64,arg3/i32", "retval/i64"),
    ("strtoul strtoull __isoc23_strtoul __isoc23_strtoull", "arg1/s,arg2/x64,arg3/i32", "retval/u64"),
    ("strtod", "arg1/s,arg2/x64", "retval/f64"),
    ("atof", "arg1/s", "retval/f64"),
    // Output and input.
    ("puts", "arg1/s", "retval/i32"),
    ("putchar", "arg1/c", "retval/i32"),
    ("printf vprintf perror", "arg1/s", "retval/i32"),
    ("__printf_chk __vprintf_chk", "arg2/s", "retval/i32"),
    ("fprintf vfprintf dprintf sprintf vsprintf", "arg1/x64,arg2/s", "retval/i32"),
    ("__fprintf_chk __vfprintf_chk", "arg1/x64,arg3/s", "retval/i32"),
    ("snprintf vsnprintf", "arg1/x64,arg2/u64,arg3/s", "retval/i32"),
    ("fputs fputs_unlocked", "arg1/s,arg2/x64", "retval/i32"),
    ("fputc putc fputc_unlocked putc_unlocked", "arg1/c,arg2/x64", "retval/i32"),
    ("fgetc getc getc_unlocked fclose pclose fflush feof ferror fileno", "arg1/x64", "retval/i32"),
    ("getchar", "", "retval/i32"),
    ("fgets", "arg1/x64,arg2/i32,arg3/x64", "retval/s"),
    ("fread fwrite fread_unlocked fwrite_unlocked", "arg1/x64,arg2/u64,arg3/u64,arg4/x64", "retval/u64"),
    ("getline", "arg1/x64,arg2/x64,arg3/x64", "retval/i64"),
    ("fopen fopen64 popen", "arg1/s,arg2/s", "retval/x64"),
    ("fdopen", "arg1/i32,arg2/s", "retval/x64"),
    ("freopen freopen64", "arg1/s,arg2/s,arg3/x64", "retval/x64"),
    ("fseek fseeko", "arg1/x64,arg2/i64,arg3/i32", "retval/i32"),
    ("ftell ftello", "arg1/x64", "retval/i64"),
    // Files.
    ("open open64", "arg1/s,arg2/x32", "retval/i32"),
    ("openat openat64", "arg1/i32,arg2/s,arg3/x32", "retval/i32"),
    ("creat creat64 access chmod mkdir mkfifo", "arg1/s,arg2/x32", "retval/i32"),
    ("close fsync fdatasync dup isatty fchdir", "arg1/i32", "retval/i32"),
    ("read write", "arg1/i32,arg2/x64,arg3/u64", "retval/i64"),
    ("pread pread64 pwrite pwrite64", "arg1/i32,arg2/x64,arg3/u64,arg4/i64", "retval/i64"),
    ("lseek lseek64", "arg1/i32,arg2/i64,arg3/i32", "retval/i64"),
    ("dup2", "arg1/i32,arg2/i32", "retval/i32"),
    ("fcntl fcntl64 ioctl", "arg1/i32,arg2/x32,arg3/x64", "retval/i32"),
    ("ftruncate ftruncate64", "arg1/i32,arg2/i64", "retval/i32"),
    ("unlink rmdir remove chdir chroot", "arg1/s", "retval/i32"),
    ("rename link symlink", "arg1/s,arg2/s", "retval/i32"),
    ("stat stat64 lstat lstat64", "arg1/s,arg2/x64", "retval/i32"),
    ("fstat fstat64", "arg1/i32,arg2/x64", "retval/i32"),
    ("readlink", "arg1/s,arg2/x64,arg3/u64", "retval/i64"),
    ("realpath", "arg1/s,arg2/x64", "retval/s"),
    ("opendir", "arg1/s", "retval/x64"),
    ("readdir readdir64 closedir", "arg1/x64", "retval/x64"),
    ("pipe", "arg1/x64", "retval/i32"),
    ("poll", "arg1/x64,arg2/u64,arg3/i32", "retval/i32"),
    // Sockets.
    ("socket", "arg1/i32,arg2/i32,arg3/i32", "retval/i32"),
    ("bind connect accept", "arg1/i32,arg2/x64,arg3/x64", "retval/i32"),
    ("listen shutdown", "arg1/i32,arg2/i32", "retval/i32"),
    ("send recv", "arg1/i32,arg2/x64,arg3/u64,arg4/x32", "retval/i64"),
    // Processes, signals, threads.
    ("exit _exit", "arg1/i32", ""),
    ("fork getpid getppid", "", "retval/i32"),
    ("execv execvp", "arg1/s,arg2/x64", "retval/i32"),
    ("execve", "arg1/s,arg2/x64,arg3/x64", "retval/i32"),
    ("system", "arg1/s", "retval/i32"),
    ("wait raise", "arg1/i32", "retval/i32"),
    ("waitpid", "arg1/i32,arg2/x64,arg3/x32", "retval/i32"),
    ("kill", "arg1/i32,arg2/i32", "retval/i32"),
    ("getenv secure_getenv", "arg1/s", "retval/s"),
    ("setenv", "arg1/s,arg2/s,arg3/i32", "retval/i32"),
    ("pthread_mutex_lock pthread_mutex_unlock pthread_mutex_trylock", "arg1/x64", "retval/i32"),
];

impl ModuleValues {
    /// Adds the arguments and results of functions of the C library, from their names and the addresses of their slots,
    /// relative to the beginning of the lowest segment.
    pub fn add_library_calls<'n>(&mut self, calls: impl IntoIterator<Item = (u64, &'n str)>) {
        for (address, name) in calls {
            if let Some(values) = values_of(name) {
                self.functions.insert(address, values);
            }
        }
    }
}

/// The values of a function of the C library.
fn values_of(name: &str) -> Option<FunctionValues> {
    let (_, arguments, result) = KNOWN.iter().find(|(names, ..)| names.split(' ').any(|known| known == name))?;
    let read = |specs: &str| ValueSpec::parse_list(specs).unwrap_or_default();
    let shown = |spec| Shown::Plain(spec, None);
    let list = |specs: &str| if specs.is_empty() { Vec::new() } else { read(specs).into_iter().map(shown).collect() };
    Some(FunctionValues { arguments: list(arguments), result: list(result).pop() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_sound() {
        let mut seen = HashSet::new();
        for (names, arguments, result) in KNOWN {
            for name in names.split(' ') {
                assert!(!name.is_empty() && seen.insert(name), "{name} is there twice");
            }
            for specs in [arguments, result] {
                assert!(specs.is_empty() || ValueSpec::parse_list(specs).is_ok(), "{names}: {specs}");
            }
            assert!(!arguments.contains("retval") && !result.contains("arg"), "{names}");
        }
    }

    #[test]
    fn functions_are_found_by_their_names() {
        let open = values_of("open64").unwrap();
        assert_eq!((open.arguments.len(), open.result.unwrap().spec().to_string()), (2, "retval/i32".into()));
        assert!(values_of("openly").is_none() && values_of("").is_none());
    }
}
