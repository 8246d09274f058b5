// DRAW's window as one operation for a read and one for a write (Gregor et al. 2015, eq. 19-27).
#pragma once

#include <ATen/ATen.h>

namespace ln {

using at::Tensor;

// The grid of filters: filter i of N has its mean at slope g + origin + stride offset_i, in pixels counted from 0.
struct WindowGrid {
  int64_t filters, pixels;  // N, A
  double slope, origin, spacing;  // offset_i = (i - (N-1)/2) spacing
  double row_sum_eps;
};

// window (B, 5): g_y, g_x, log stride, log variance, log intensity. image, canvas (B, A, A); the canvas in logits.
// Returns gamma F_y [image | image - sigmoid(canvas)] F_x^T as (B, N 2 N), in the order row, which, column.
Tensor window_read(const Tensor& window, const Tensor& image, const Tensor& canvas, const WindowGrid& grid);

// canvas + F_y^T patch F_x / gamma; patch (B, N N), row by row. Returns (B, A, A).
Tensor window_write(const Tensor& window, const Tensor& canvas, const Tensor& patch, const WindowGrid& grid);

}  // namespace ln
