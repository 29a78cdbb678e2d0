#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/cuda/devices.hpp"
#include "common/memory/device.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The kernels of a GPU for tensors on the host, so that one test runs on all families.

namespace rankwise::testing {

/// The GPU that tests use; null where the build has no CUDA or the machine no GPU.
inline Device* test_gpu()
{
  static const std::unique_ptr<Device> device = [] {
    try {
      check_device(DeviceKind::cuda);
    } catch (const UserError&) {
      return std::unique_ptr<Device>();
    }
    return make_device(DeviceKind::cuda);
  }();
  return device.get();
}

/// Whether it is an emulated one, whose exponential is the host's.
inline bool gpu_is_emulated()
{
  return test_gpu() != nullptr && test_gpu()->name() == "emulated GPU";
}

/// What surrounds a tensor in the memory of a GPU.
enum class Surroundings : std::uint8_t {
  nothing,  ///< the tensor fills its allocation: an access beyond it is outside of any allocation
  nans,     ///< NaNs; the tensor begins one element after a boundary of 64 bytes, and writes beside it are found
};

/// The tensors of one call on their way to a GPU and back.
class Journey {
 public:
  /// @param gpu           where to.
  /// @param stream        of the GPU.
  /// @param surroundings  what surrounds each tensor there.
  Journey(const DeviceMemory& gpu, Stream& stream, Surroundings surroundings)
      : gpu_(gpu), stream_(stream), nans_(surroundings == Surroundings::nans)
  {
  }

  /// A copy of @p host on the GPU, one for all views of the same elements.
  /// @throws Error  when it shares a part of another's elements: the copies would not.
  Tensor carry(const Tensor& host)
  {
    if (host.elements() == 0) return host;
    for (const Piece& piece : pieces_) {
      if (piece.host.raw() == host.raw() && piece.host.bytes() == host.bytes())
        return Tensor(piece.memory.tensor().raw() + margin(host), host.type(), host.shape());
      check(host.raw() + host.bytes() <= piece.host.raw() || piece.host.raw() + piece.host.bytes() <= host.raw(),
            "two tensors of a kernel share a part of their memory");
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(host.bytes() + 2 * margin(host)), around);
    std::copy_n(host.raw(), host.bytes(), bytes.begin() + margin(host));
    const auto size = static_cast<std::int64_t>(bytes.size());
    pieces_.push_back({host, Buffer(gpu_, Category::workspace, DType::u8, {size}, "test data")});
    stream_.copy(pieces_.back().memory.tensor(), Tensor(bytes.data(), DType::u8, {size}));
    stream_.synchronise();
    return carry(host);
  }
  /// The same of a matrix.
  Matrix carry(const Matrix& host)
  {
    Matrix there = host;
    there.data = carry(host.data);
    return there;
  }
  /// The same of a partial soft-max.
  SoftmaxPartial carry(const SoftmaxPartial& host)
  {
    return {carry(host.maximum), carry(host.sum), carry(host.output)};
  }
  /// The same of the lengths of a shape.
  AttentionShape carry(const AttentionShape& host)
  {
    AttentionShape there = host;
    there.lengths = carry(host.lengths);
    return there;
  }
  /// Arguments that are not tensors are passed on unchanged.
  template <class T>
  const T& carry(const T& value)
  {
    return value;
  }

  /// Copies every tensor back to where it came from, inputs too.
  /// @throws Error  when something was written beside one.
  void bring_back()
  {
    for (const Piece& piece : pieces_) {
      const std::vector<std::uint8_t> bytes = to_host<std::uint8_t>(stream_, piece.memory.tensor());
      const auto first = bytes.begin() + margin(piece.host), last = bytes.end() - margin(piece.host);
      const auto untouched = [](std::uint8_t byte) { return std::byte{byte} == around; };
      check(std::all_of(bytes.begin(), first, untouched) && std::all_of(last, bytes.end(), untouched),
            "a kernel wrote beside a tensor");
      std::transform(first, last, piece.host.raw(), [](std::uint8_t byte) { return std::byte{byte}; });
    }
  }

 private:
  static constexpr std::byte around{0xFF};  // of a NaN

  /// Bytes on each side of a tensor.
  std::int64_t margin(const Tensor& host) const { return nans_ ? 64 + bytes_of(host.type()) : 0; }

  struct Piece {
    Tensor host;
    Buffer memory;  // u8, with both margins
  };

  DeviceMemory gpu_;
  Stream& stream_;
  bool nans_;  // around each
  std::vector<Piece> pieces_;
};

/// A family of a GPU's kernels that takes tensors on the host: each call carries them to the GPU, runs there, and carries
/// them back.
class CarriedKernels final : public KernelFamily {
 public:
  /// How a family is made.
  using Make = Kernels(const DeviceMemory&, Stream&);

  /// @param make          make_cuda_kernels or make_cuda_reference_kernels.
  /// @param surroundings  what surrounds tensors on the GPU.
  explicit CarriedKernels(Make* make, Surroundings surroundings)
      : stream_(test_gpu()->make_stream()), kernels_(make(gpu(), *stream_)), surroundings_(surroundings)
  {
  }

  void matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
              bool accumulate) const override
  {
    return run(&KernelFamily::matmul, out, a, b, order, bias, accumulate);
  }
  void bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const override
  {
    return run(&KernelFamily::bias_backward, dbias, dy, order);
  }
  void token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens, Range vocabulary) const override
  {
    return run(&KernelFamily::token_forward, y, wte, tokens, vocabulary);
  }
  void token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                      const SumOrder& order) const override
  {
    return run(&KernelFamily::token_backward, dwte, dx, tokens, vocabulary, order);
  }
  void position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                        const Dropout& dropout) const override
  {
    return run(&KernelFamily::position_forward, x, y, wpe, rows, dropout);
  }
  void position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const override
  {
    return run(&KernelFamily::position_backward, dwpe, dx, rows);
  }
  void norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, double epsilon) const override
  {
    return run(&KernelFamily::norm_forward, y, mean, rstd, x, weight, bias, epsilon);
  }
  void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                     const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                     const SumOrder& order) const override
  {
    return run(&KernelFamily::norm_backward, dx, dweight, dbias, dy, x, mean, rstd, weight, order);
  }
  void attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                         const Dropout& dropout) const override
  {
    return run(&KernelFamily::attention_forward, y, log_sum_exp, qkv, shape, dropout);
  }
  void cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                const AttentionShape& shape, Range tokens) const override
  {
    return run(&KernelFamily::cached_attention_forward, y, cache, qkv, shape, tokens);
  }
  void attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y, const Tensor& log_sum_exp,
                          const Tensor& qkv, const AttentionShape& shape, const Dropout& dropout) const override
  {
    return run(&KernelFamily::attention_backward, dqkv, dy, y, log_sum_exp, qkv, shape, dropout);
  }
  void attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                         const AttentionShape& shape, const AttentionRuns& runs,
                         const Dropout& dropout) const override
  {
    return run(&KernelFamily::attention_partial, partial, qkv, kv, shape, runs, dropout);
  }
  void attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const override
  {
    return run(&KernelFamily::attention_merge, into, from);
  }
  void attention_divide(const Tensor& y, const Tensor& log_sum_exp, const SoftmaxPartial& partial) const override
  {
    return run(&KernelFamily::attention_divide, y, log_sum_exp, partial);
  }
  void attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                  const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                  const AttentionShape& shape, const AttentionRuns& runs,
                                  const Dropout& dropout) const override
  {
    return run(&KernelFamily::attention_partial_backward, dq, dkv, dy, y, log_sum_exp, qkv, kv, shape, runs,
               dropout);
  }
  void copy(const Matrix& to, const Matrix& from) const override { return run(&KernelFamily::copy, to, from); }
  void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const override
  {
    return run(&KernelFamily::bias_gelu_forward, y, x, bias);
  }
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const override
  {
    return run(&KernelFamily::gelu_backward, dx, dy, x);
  }
  void tanh_forward(const Tensor& y, const Tensor& x) const override
  {
    return run(&KernelFamily::tanh_forward, y, x);
  }
  void tanh_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) const override
  {
    return run(&KernelFamily::tanh_backward, dx, dy, y);
  }
  void matmul_gelu_forward(const Tensor& y, const Matrix& x, const Matrix& a, const Matrix& b,
                           const SumOrder& order, const Tensor& bias) const override
  {
    return run(&KernelFamily::matmul_gelu_forward, y, x, a, b, order, bias);
  }
  void matmul_gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& b, const SumOrder& order,
                            const Tensor& x) const override
  {
    return run(&KernelFamily::matmul_gelu_backward, dx, dy, b, order, x);
  }
  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override
  {
    return run(&KernelFamily::residual_forward, out, x, y, bias, dropout);
  }
  void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const override
  {
    return run(&KernelFamily::dropout, y, x, dropout);
  }
  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override
  {
    return run(&KernelFamily::row_maximum, maximum, logits, valid);
  }
  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
               const Tensor& targets, Range vocabulary, const SumOrder& order) const override
  {
    return run(&KernelFamily::row_sum, sum, target_logit, logits, maximum, targets, vocabulary, order);
  }
  void row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                      const Tensor& targets, Range vocabulary, const SumOrder& order) const override
  {
    return run(&KernelFamily::row_statistics, maximum, sum, target_logit, logits, targets, vocabulary, order);
  }
  ExactScalar loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                       const Tensor& targets) const override
  {
    return run(&KernelFamily::loss_sum, sum, maximum, target_logit, targets);
  }
  void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                     Range vocabulary, double weight) const override
  {
    return run(&KernelFamily::loss_backward, logits, maximum, sum, targets, vocabulary, weight);
  }
  void route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
             const Tensor& logits) const override
  {
    return run(&KernelFamily::route, probabilities, choices, weights, logits);
  }
  void route_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& probabilities,
                      const Tensor& choices, const Tensor& weights, const Tensor& pull) const override
  {
    return run(&KernelFamily::route_backward, dlogits, dweights, probabilities, choices, weights, pull);
  }
  void scatter_rows(const Tensor& rows, const Tensor& x, const Tensor& places) const override
  {
    return run(&KernelFamily::scatter_rows, rows, x, places);
  }
  void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& places, const Tensor& weights) const override
  {
    return run(&KernelFamily::combine_rows, y, rows, places, weights);
  }
  void combine_rows_backward(const Tensor& drows, const Tensor& dweights, const Tensor& dy, const Tensor& rows,
                             const Tensor& places, const Tensor& weights) const override
  {
    return run(&KernelFamily::combine_rows_backward, drows, dweights, dy, rows, places, weights);
  }
  void add(const Tensor& into, const Tensor& from) const override { return run(&KernelFamily::add, into, from); }
  void maximum(const Tensor& into, const Tensor& from) const override
  {
    return run(&KernelFamily::maximum, into, from);
  }
  ExactScalar squared_norm(const Tensor& x) const override { return run(&KernelFamily::squared_norm, x); }
  std::optional<std::int64_t> first_not_finite(const Tensor& x) const override
  {
    return run(&KernelFamily::first_not_finite, x);
  }
  void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient, const AdamWStep& step,
             const Tensor& rounded) const override
  {
    return run(&KernelFamily::adamw, p, m, v, gradient, step, rounded);
  }
  void convert(const Tensor& to, const Tensor& from) const override
  {
    return run(&KernelFamily::convert, to, from);
  }

 private:
  /// The GPU's memory, with a ledger that is not checked.
  static DeviceMemory gpu()
  {
    static MemoryLedger ledger;
    return {test_gpu(), &ledger};
  }

  /// Calls one of the family's kernels with tensors on the GPU.
  template <class Result, class... Parameters, class... Arguments>
  Result run(Result (KernelFamily::*kernel)(Parameters...) const, const Arguments&... arguments) const
  {
    Journey journey(gpu(), *stream_, surroundings_);
    if constexpr (std::is_void_v<Result>) {
      (kernels_.operator->().operator->()->*kernel)(journey.carry(arguments)...);
      journey.bring_back();
    } else {
      Result result = (kernels_.operator->().operator->()->*kernel)(journey.carry(arguments)...);
      journey.bring_back();
      return result;
    }
  }

  std::unique_ptr<Stream> stream_;
  Kernels kernels_;
  Surroundings surroundings_;
};

/// A family that adds in the order of every SumOrder, so that what it computes in parts has the bits of the whole.
struct OrderedFamily {
  std::string name;   ///< in messages
  Kernels (*make)();  ///< makes its kernels, for tensors on the host
};

/// The reference and the exact family, and where there is a GPU the reference there.
inline std::vector<OrderedFamily> ordered_families()
{
  std::vector<OrderedFamily> families{{"reference", make_reference_kernels}, {"exact", make_exact_kernels}};
  if (test_gpu() != nullptr)
    families.push_back({"reference on a GPU", []() -> Kernels {
                          return std::make_unique<CarriedKernels>(make_cuda_reference_kernels,
                                                                  Surroundings::nothing);
                        }});
  return families;
}

}  // namespace rankwise::testing
