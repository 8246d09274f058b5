// What Python sees: models/kernels/fused.py is the only caller.
#include <torch/csrc/utils/pybind.h>

#include "attention.h"
#include "gru.h"
#include "lstm.h"
#include "team.h"

namespace {

at::Tensor tensor(const std::optional<at::Tensor>& t) { return t.value_or(at::Tensor()); }

ln::LstmParameters lstm_parameters(const at::Tensor& weight_ih, const std::optional<at::Tensor>& inner,
                                   const at::Tensor& weight_hh, const std::optional<at::Tensor>& gain_x,
                                   const std::optional<at::Tensor>& gain_r, const at::Tensor& bias,
                                   const std::optional<at::Tensor>& gain_c, const std::optional<at::Tensor>& bias_c,
                                   double eps, bool per_gate, double clip) {
  return {weight_ih,      tensor(inner), weight_hh, tensor(gain_x), tensor(gain_r), bias,
          tensor(gain_c), tensor(bias_c), eps,      per_gate,       clip};
}

ln::GruParameters gru_parameters(const at::Tensor& weight_ih, const std::optional<at::Tensor>& inner,
                                 const at::Tensor& weight_hh, const at::Tensor& gain_x, const at::Tensor& gain_r,
                                 const at::Tensor& bias, const at::Tensor& bias_r, double eps, bool per_gate) {
  return {weight_ih, tensor(inner), weight_hh, gain_x, gain_r, bias, bias_r, eps, per_gate};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using py::arg;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("team_works", &ln::team_works);
  py::class_<ln::LstmParameters>(m, "LstmParameters")
      .def(py::init(&lstm_parameters), arg("weight_ih"), arg("inner"), arg("weight_hh"), arg("gain_x"), arg("gain_r"),
           arg("bias"), arg("gain_c"), arg("bias_c"), arg("eps"), arg("per_gate"), arg("clip"));
  m.def("lstm_sequence", [](const at::Tensor& x, const ln::LstmParameters& p, const at::Tensor& h0, const at::Tensor& c0,
                            const std::optional<at::Tensor>& lengths) {
    return ln::lstm_sequence(x, p, h0, c0, tensor(lengths));
  }, no_gil);
  py::class_<ln::LstmSteps>(m, "LstmSteps")
      .def(py::init<int64_t, int64_t, const ln::LstmParameters&>(), no_gil)
      .def("step", &ln::LstmSteps::step, no_gil);
  py::class_<ln::GruParameters>(m, "GruParameters")
      .def(py::init(&gru_parameters), arg("weight_ih"), arg("inner"), arg("weight_hh"), arg("gain_x"), arg("gain_r"),
           arg("bias"), arg("bias_r"), arg("eps"), arg("per_gate"));
  m.def("gru_sequence", [](const at::Tensor& x, const ln::GruParameters& p, const at::Tensor& h0,
                           const std::optional<at::Tensor>& lengths) {
    return ln::gru_sequence(x, p, h0, tensor(lengths));
  }, no_gil);
  py::class_<ln::WindowGrid>(m, "WindowGrid")
      .def(py::init<int64_t, int64_t, double, double, double, double>(), arg("filters"), arg("pixels"), arg("slope"), arg("origin"),
           arg("spacing"), arg("row_sum_eps"));
  m.def("window_read", &ln::window_read, no_gil);
  m.def("window_write", &ln::window_write, no_gil);
}
