#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/memory/memory_ledger.hpp"
#include "gpt2/config.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The order of sums: the fastest one, or the same order on every layout. It is chosen once from the options; the
/// code that uses it is the same for both.

namespace rankwise {

/// `--arithmetic`.
enum class Sums : std::uint8_t {
  fast,   ///< the fastest order
  exact,  ///< the order of tree_sum(), so that every layout gives the same bits
  plain,  ///< the same bits by the reference kernels, which are the specification
};

/// The combination of kernels, GradientSum and order of sums between devices that `--arithmetic` selects.
class Arithmetic {
 public:
  /// @param sums  the order of sums.
  /// @param tf32  true if a GPU may round the factors of f32 products to TF32.
  explicit Arithmetic(Sums sums, bool tf32 = false) : sums_(sums), tf32_(tf32) {}

  /// Creates the kernels for a device.
  /// @param memory  memory of the device; the kernels of a GPU allocate kernel_bytes() of it.
  /// @param stream  stream of the device that runs the kernels; outlives them.
  Kernels make_kernels(const DeviceMemory& memory, Stream& stream) const;
  /// Origin of the matrix products of @p type on @p device, for reports: a library and its version, or code of our
  /// own.
  std::string products(DeviceKind device, DType type) const;
  /// Creates a sum of gradients; @p kernels, @p stream and @p memory outlive it.
  std::unique_ptr<GradientSum> make_gradient_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                                 const GradientLayout& layout) const;
  /// The bytes that make_gradient_sum() needs, by category, when micro-batches are added in order.
  /// @param micro_batches  their numbers, as in tree_buffers().
  CategoryBytes gradient_bytes(const GradientLayout& layout, Range micro_batches) const;
  /// The bytes for the first @p micro_batches of a global batch.
  CategoryBytes gradient_bytes(const GradientLayout& layout, std::int64_t micro_batches) const
  {
    return gradient_bytes(layout, {0, micro_batches});
  }

  /// True if GradientSum::sums() returns the two contributions to the tied embedding's gradient as separate sums.
  bool separates_tied() const { return sums_ != Sums::fast; }
  /// True if sums across devices have to continue the tree of tree_sum().
  bool continues_tree() const { return sums_ != Sums::fast; }

 private:
  Sums sums_;
  bool tf32_;
};

/// The degrees of parallelism of a layout.
struct Layout {
  std::int64_t dp = 1;  ///< data-parallel
  std::int64_t tp = 1;  ///< tensor-parallel
  std::int64_t pp = 1;  ///< pipeline-parallel
  /// Runs of tokens in which context parallelism divides a sequence: 2 c on c ranks; 1: without it.
  std::int64_t token_runs = 1;
  /// True if replicas may compute different numbers of sequences, so that in exact arithmetic dp, pp and the global
  /// batch may be any numbers.
  bool uneven = false;
};

/// The sizes of a global batch and of its micro-batches.
struct BatchShape {
  std::int64_t global_batch = 0;  ///< G, sequences per step
  std::int64_t micro_batch = 0;   ///< B, sequences per micro-batch
  std::int64_t sequence = 0;      ///< T, tokens per sequence
};

/// Sequences of a micro-batch in exact arithmetic, where micro-batches are cut at the ends of the aligned runs that the
/// replicas' sequences consist of: the largest power of two that divides the number of sequences of every replica.
/// @param asked  --micro-batch, a power of two that is not exceeded; 0: none.
/// @param global_batch  G, at least one sequence for each replica.
std::int64_t cut_micro_batch(std::int64_t asked, std::int64_t global_batch, std::int64_t replicas);

/// Refuses sizes that exact arithmetic does not support: degrees, G or B that are not powers of two (unless the layout is
/// uneven, tp and B), a T that is not a multiple of 16, or a C that is not one of 8; runs of tokens that are not whole
/// sixteenths, or of several sequences.
/// @throws UserError naming the first of them and the possible values.
void check_exact(const Layout& layout, const ModelConfig& config, const BatchShape& batch);

}  // namespace rankwise
