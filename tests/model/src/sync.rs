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

    macro_rules! operations {
        ($value:ty) => {
            /// A point, then the real operation.
            pub fn load(&self, order: Ordering) -> $value {
                point(self.address());
                self.0.load(order)
            }

            /// A point, then the real operation.
            pub fn store(&self, value: $value, order: Ordering) {
                point(self.address());
                self.0.store(value, order);
            }

            /// A point, then the real operation.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point(self.address());
                self.0.swap(value, order)
            }

            /// A point, then the real operation.
            ///
            /// # Errors
            ///
            /// The value that is there, if that is not `current`.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point(self.address());
                self.0.compare_exchange(current, new, success, failure)
            }

            /// A point, then the real operation.
            ///
            /// # Errors
            ///
            /// The value that is there, if that is not `current` or the exchange failed.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point(self.address());
                self.0.compare_exchange_weak(current, new, success, failure)
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

                /// A point, then the real operation.
                pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    point(self.address());
                    self.0.fetch_add(value, order)
                }

                /// A point, then the real operation.
                pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    point(self.address());
                    self.0.fetch_sub(value, order)
                }

                /// A point, then the real operation.
                pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    point(self.address());
                    self.0.fetch_or(value, order)
                }

                /// A point, then the real operation.
                pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    point(self.address());
                    self.0.fetch_and(value, order)
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
