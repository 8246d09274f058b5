// A team of threads that walks through the time steps together.
#pragma once

#include <atomic>
#include <thread>

#include <ATen/Parallel.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace ln {

// All n threads meet here. A short spin, for the others are nearly there; then the core is given away, so that on a
// machine with more runnable threads than cores the one that is waited for gets to run.
class Barrier {
 public:
  void wait(int n) {
    if (n == 1) return;
    const int turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins) {
      if (spins < 4000) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  std::atomic<int> arrived_{0}, turn_{0};
};

// Runs work(id, n) on n threads: as many as OpenMP grants, 1 without it or inside another parallel region.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {}  template <class Work>
  void run(const Work& work) const {
#if defined(_OPENMP)
    if (threads_ > 1 && !omp_in_parallel()) {
#pragma omp parallel num_threads(threads_)
      work(omp_get_thread_num(), omp_get_num_threads());
      return;
    }
#endif
    work(0, 1);
  }

 private:
  const int threads_;
};

// Whether a team's threads know of each other. Not so where the compiler's OpenMP is another than PyTorch's: each
// thread may then believe that it is alone, and do all of the work.
inline bool team_works() {
  std::atomic<int> calls{0}, size{0};
  Team(2).run([&](int, int n) { ++calls, size = n; });
  return calls == size;
}

}  // namespace ln
