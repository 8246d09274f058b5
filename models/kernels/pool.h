// Buffers that outlive their tensors: a fresh page costs more than the arithmetic on it.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>

#include <ATen/ATen.h>

#include "gemm.h"

namespace ln {

// A buffer belongs to one tensor at a time and comes back when that tensor's last reference goes, so that two layers,
// or two forward passes before a backward pass, can never share one.
class Pool {
 public:
  static Pool& instance() {
    static Pool* pool = new Pool;  // never destroyed: tensors may be freed while the process exits
    return *pool;
  }

  // An uninitialised float32 tensor.
  at::Tensor empty(at::IntArrayRef sizes) {
    int64_t wanted = 1;
    for (const int64_t size : sizes) wanted *= size;
    wanted = std::max<int64_t>(wanted, 1);
    auto [memory, size] = take(wanted);
    float* data = memory.release();
    const auto give_back = [size = size](void* p) { instance().put(AlignedFloats(static_cast<float*>(p)), size); };
    return at::from_blob(data, sizes, give_back, at::TensorOptions().dtype(at::kFloat));
  }

 private:
  static constexpr int64_t MOST_IDLE = int64_t{1} << 28;  // floats kept for later, 1 GiB in all

  struct Idle {
    AlignedFloats memory;
    int64_t size;
  };

  Idle take(int64_t wanted) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      auto best = idle_.end();
      for (auto it = idle_.begin(); it != idle_.end(); ++it)
        if (it->size >= wanted && it->size <= wanted + wanted / 2 && (best == idle_.end() || it->size < best->size))
          best = it;
      if (best != idle_.end()) {
        Idle found = std::move(*best);
        idle_.erase(best);
        idle_floats_ -= found.size;
        return found;
      }
    }
    return {aligned_floats(wanted), wanted};
  }

  void put(AlignedFloats memory, int64_t size) {
    const std::lock_guard<std::mutex> guard(mutex_);
    idle_.push_back({std::move(memory), size});
    for (idle_floats_ += size; idle_floats_ > MOST_IDLE; idle_.pop_front()) idle_floats_ -= idle_.front().size;
  }

  std::mutex mutex_;
  std::list<Idle> idle_;  // the longest idle first: it goes first
  int64_t idle_floats_ = 0;
};

}  // namespace ln
