#include "gpt2/arithmetic.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace rankwise {

Kernels Arithmetic::make_kernels(const DeviceMemory& memory, Stream& stream) const
{
  if (memory.device->kind() == DeviceKind::cuda) {
    if (sums_ != Sums::fast) return make_cuda_reference_kernels(memory, stream);
    return tf32_ ? make_cuda_tf32_kernels(memory, stream) : make_cuda_kernels(memory, stream);
  }
  if (sums_ == Sums::plain) return make_reference_kernels();
  return sums_ == Sums::exact ? make_exact_kernels() : make_cpu_kernels();
}

std::string Arithmetic::products(DeviceKind device, DType type) const
{
  const bool cuda = device == DeviceKind::cuda;
  if (sums_ == Sums::fast) return cuda ? cuda_products() : cpu_products(type);
  return sums_ == Sums::exact && !cuda ? "tiles in a fixed order" : "loops in a fixed order";
}

std::unique_ptr<GradientSum> Arithmetic::make_gradient_sum(const Kernels& kernels, Stream& stream,
                                                           const DeviceMemory& memory,
                                                           const GradientLayout& layout) const
{
  return sums_ == Sums::fast ? make_running_sum(kernels, stream, memory, layout)
                             : make_tree_sum(kernels, stream, memory, layout);
}

CategoryBytes Arithmetic::gradient_bytes(const GradientLayout& layout, Range micro_batches) const
{
  const std::int64_t all = layout.elements * bytes_of(layout.type),
                     tied = layout.tied.count * bytes_of(layout.type);
  CategoryBytes bytes;
  bytes[Category::gradients] = all;
  if (sums_ == Sums::fast) return bytes;
  bytes[Category::exact_sums] = (tree_buffers(micro_batches) - 1) * (all + tied) + tied;
  return bytes;
}

namespace {

bool power_of_two(std::int64_t n)
{
  return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n));
}

}  // namespace

std::int64_t cut_micro_batch(std::int64_t asked, std::int64_t global_batch, std::int64_t replicas)
{
  const std::int64_t share = global_batch / replicas;
  const std::int64_t divides_all =
      global_batch % replicas == 0 ? share & -share : 1;  // only 1 divides both n and n + 1
  return asked == 0 ? divides_all : std::min(asked, divides_all);
}

void check_exact(const Layout& layout, const ModelConfig& config, const BatchShape& batch)
{
  const std::string why =
      "With --arithmetic=exact every sum is one balanced binary tree that is cut at its branches.\n";
  struct Power {
    const char* option;
    std::int64_t value;
    bool any;
  };
  const std::array<Power, 5> powers{{{"data-parallel ranks: ", layout.dp, layout.uneven},
                                     {"--tp=", layout.tp, false},
                                     {"pipeline-parallel ranks: ", layout.pp, layout.uneven},
                                     {"--global-batch=", batch.global_batch, layout.uneven},
                                     {"--micro-batch=", batch.micro_batch, false}}};
  for (const auto& [option, value, any] : powers)
    if (!any && !power_of_two(value))
      throw UserError(fmt::format("{}{} is not a power of two.", option, value),
                      why + fmt::format("Use {} or {}, or --arithmetic=fast.",
                                        std::bit_floor(static_cast<std::uint64_t>(value)),
                                        std::bit_ceil(static_cast<std::uint64_t>(value))));
  if (layout.tp > leaves_of_a_split_sum)
    throw UserError(
        fmt::format("--tp={} is more than 8.", layout.tp),
        why +
            "A sum that is divided among tensor-parallel ranks has 8 leaves. Use 8 or less, or --arithmetic=fast.");
  if (layout.token_runs > leaves_of_a_sequence || !power_of_two(layout.token_runs))
    throw UserError(fmt::format("--cp={} does not divide the {} leaves of a sum over a sequence into equal runs.",
                                layout.token_runs / 2, leaves_of_a_sequence),
                    why + "Each context-parallel rank has two runs. Use 1, 2, 4 or 8 ranks, or --arithmetic=fast.");
  if (layout.token_runs > 1 && batch.micro_batch > 1)
    throw UserError(fmt::format("--micro-batch={} is more than one sequence.", batch.micro_batch),
                    why +
                        "Sums run over the tokens of a sequence first, which are on several ranks, and then over "
                        "sequences.\nUse --micro-batch=1, or --arithmetic=fast.");
  struct Divided {
    const char* option;
    std::int64_t value, leaves;
  };
  for (const auto& [option, value, leaves] : {Divided{"--sequence", batch.sequence, leaves_of_a_sequence},
                                              Divided{"--channels", config.channels, leaves_of_a_split_sum}})
    if (value % leaves != 0)
      throw UserError(fmt::format("{}={} is not divisible by {}.", option, value, leaves),
                      why + fmt::format("A sum over it has {} leaves of equal size. Use {}, or --arithmetic=fast.",
                                        leaves, (value + leaves - 1) / leaves * leaves));
}

}  // namespace rankwise
