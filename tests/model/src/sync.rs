//! `core::sync` with a [`point`] before each atomic operation.

/// The atomics: the real ones, so that memory may be raw and zeroed.
pub mod atomic {
    use std::fmt;

    use crate::steer::point;
    pub use std::sync::atomic::{Ordering, compiler_fence};

    /// The real fence, which is a point too.
    pub fn fence(order: Ordering) {
        point(0);
        std::sync::atomic::fence(order);
    }

    macro_rules! forward {
        ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
            $(
                /// A point, then the real operation.
                pub fn $name(&self, $($argument: $type),*) -> $result {
                    point(self.address());
                    self.0.$name($($argument),*)
                }
            )*
        };
    }

    macro_rules! operations {
        ($value:ty) => {
            forward! {
                load(order: Ordering) -> $value;
                store(value: $value, order: Ordering) -> ();
                swap(value: $value, order: Ordering) -> $value;
                compare_exchange(old: $value, new: $value, set: Ordering, fetch: Ordering) -> Result<$value, $value>;
                compare_exchange_weak(old: $value, new: $value, set: Ordering, fetch: Ordering)
                    -> Result<$value, $value>;
            }

            /// The loop that the real operation is.
            ///
            /// # Errors
            ///
            /// The value that is there, if `new` has no answer for it.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut new: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut now = self.load(fetch);
                while let Some(next) = new(now) {
                    match self.compare_exchange_weak(now, next, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(before) => now = before,
                    }
                }
                Err(now)
            }

            fn address(&self) -> usize {
                std::ptr::from_ref(self).addr()
            }
        };
    }

    macro_rules! integer {
        ($name:ident, $value:ty) => {
            /// An atomic integer.
            #[repr(transparent)]
            pub struct $name(std::sync::atomic::$name);

            impl $name {
                /// With a value.
                #[must_use]
                pub const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }

                operations!($value);

                forward! {
                    fetch_add(value: $value, order: Ordering) -> $value;
                    fetch_max(value: $value, order: Ordering) -> $value;
                    fetch_sub(value: $value, order: Ordering) -> $value;
                    fetch_or(value: $value, order: Ordering) -> $value;
                    fetch_and(value: $value, order: Ordering) -> $value;
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }
        };
    }

    integer!(AtomicU8, u8);
    integer!(AtomicU32, u32);
    integer!(AtomicU64, u64);
    integer!(AtomicUsize, usize);

    /// An atomic pointer.
    #[repr(transparent)]
    pub struct AtomicPtr<T>(std::sync::atomic::AtomicPtr<T>);

    impl<T> AtomicPtr<T> {
        /// With a value.
        #[must_use]
        pub const fn new(value: *mut T) -> Self {
            Self(std::sync::atomic::AtomicPtr::new(value))
        }

        operations!(*mut T);
    }

    impl<T> fmt::Debug for AtomicPtr<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }
}
