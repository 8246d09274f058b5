// Buffers that outlive their tensors: a fresh page costs more than the arithmetic on it.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
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
  static constexpr int64_t MOST_IDLE = int64_t{1} << 28;  // floats kept for later, 1 GiB

  std::pair<AlignedFloats, int64_t> take(int64_t wanted) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      const auto found = idle_.lower_bound(wanted);
      if (found != idle_.end() && found->first <= wanted + wanted / 2) {
        std::pair<AlignedFloats, int64_t> result(std::move(found->second), found->first);
        idle_floats_ -= found->first;
        idle_.erase(found);
        return result;
      }
    }
    return {aligned_floats(wanted), wanted};
  }

  void put(AlignedFloats memory, int64_t size) {
    const std::lock_guard<std::mutex> guard(mutex_);
    idle_.emplace(size, std::move(memory));
    for (idle_floats_ += size; idle_floats_ > MOST_IDLE; idle_.erase(idle_.begin()))
      idle_floats_ -= idle_.begin()->first;
  }

  std::mutex mutex_;
  std::multimap<int64_t, AlignedFloats> idle_;
  int64_t idle_floats_ = 0;
};

}  // namespace ln
