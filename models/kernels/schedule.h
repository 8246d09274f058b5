// How the threads share out the time steps of a sequence.
#pragma once

#include <cstdint>

#include "gemm.h"
#include "team.h"

namespace ln {

// A thread's part of one product: rows [row, row + rows) of the batch, panels [panel, last_panel) of the weights.
struct Share {
  int64_t row, rows, panel, last_panel;
};

// Either every thread takes its own cases through all steps and never waits, or, when there are few cases or the
// weights outgrow a core's cache, the threads share out each product's columns and meet twice a step.
class Schedule {
 public:
  Schedule(int threads, int64_t batch, int64_t units, int64_t gates)
      : by_case_(threads == 1 || (batch / threads >= 2 * MR && units * gates * 4 <= CACHE)), threads_(threads) {}

  int threads() const { return threads_; }

  // For each step: all products, then row(t, b) for every case b.
  template <class Product, class Row>
  void forward(int64_t T, const Product& product, const Row& row, const Packed& weights, int64_t B) const {
    run(weights, B, [&](const auto& meet, const Share& share, int64_t first, int64_t last, int) {
      for (int64_t t = 0; t < T; ++t) {
        product(t, share);
        meet();
        for (int64_t b = first; b < last; ++b) row(t, b);
        meet();
      }
    });
  }

  // For each step from the last: row(t, b, thread) for every case, then all products.
  template <class Row, class Product>
  void backward(int64_t T, const Row& row, const Product& product, const Packed& weights, int64_t B) const {
    run(weights, B, [&](const auto& meet, const Share& share, int64_t first, int64_t last, int thread) {
      for (int64_t t = T - 1; t >= 0; --t) {
        for (int64_t b = first; b < last; ++b) row(t, b, thread);
        meet();
        product(t, share);
        meet();
      }
    });
  }

 private:
  static constexpr int64_t CACHE = 3 << 19;  // bytes: 1.5 MiB

  template <class Work>
  void run(const Packed& weights, int64_t B, const Work& work) const {
    Barrier barrier;
    Team(threads_).run([&](int id, int n) {
      const int64_t first = B * id / n, last = B * (id + 1) / n, panels = weights.panels();
      if (by_case_) return work([] {}, Share{first, last - first, 0, panels}, first, last, id);
      const Share share{0, B, panels * id / n, panels * (id + 1) / n};
      work([&] { barrier.wait(n); }, share, first, last, id);
    });
  }

  bool by_case_;
  int threads_;
};

}  // namespace ln
