//! Services, and what becomes of them while somebody waits.
