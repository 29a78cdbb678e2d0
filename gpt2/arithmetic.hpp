#pragma once

#include <cstdint>
#include <memory>

#include "common/memory/memory_ledger.hpp"
#include "gpt2/config.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// In which order sums are added: as fast as possible, or in one order on every layout. Made once from the options;
/// whoever uses it need not know which it is.

namespace rankwise {

/// `--arithmetic`.
enum class Sums : std::uint8_t {
  fast,   ///< whatever is fastest
  exact,  ///< the one order of tree_sum(), so that every layout gives the same bits
};

/// The family of kernels, the kind of GradientSum and the order of sums between devices that belong together.
class Arithmetic {
 public:
  /// @param sums  which order.
  /// @param tf32  whether a GPU may round the factors of f32 products to TF32.
  explicit Arithmetic(Sums sums, bool tf32 = false) : sums_(sums), tf32_(tf32) {}

  /// The kernels for a device.
  /// @param memory  of the device; the kernels of a GPU take kernel_bytes() of it.
  /// @param stream  of the device, which runs them; outlives them.
  std::unique_ptr<Kernels> make_kernels(const DeviceMemory& memory, Stream& stream) const;
  /// A sum of gradients; @p kernels, @p stream and @p memory outlive it.
  std::unique_ptr<GradientSum> make_gradient_sum(const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
                                                 const GradientLayout& layout) const;
  /// The bytes that make_gradient_sum() takes by category, when @p micro_batches come in order, a power of two of them.
  CategoryBytes gradient_bytes(const GradientLayout& layout, std::int64_t micro_batches) const;

  /// Whether the tied embedding's two gradients are summed apart, as GradientSum::sums() gives them.
  bool separates_tied() const { return sums_ == Sums::exact; }
  /// Whether sums across devices have to continue the tree of tree_sum().
  bool continues_tree() const { return sums_ == Sums::exact; }

 private:
  Sums sums_;
  bool tf32_;
};

/// The degrees of a layout of ranks.
struct Layout {
  std::int64_t dp = 1;  ///< data-parallel
  std::int64_t tp = 1;  ///< tensor-parallel
  std::int64_t pp = 1;  ///< pipeline-parallel
};

/// How the global batch is cut.
struct BatchShape {
  std::int64_t global_batch = 0;  ///< G, sequences a step
  std::int64_t micro_batch = 0;   ///< B, sequences that one pass takes
  std::int64_t sequence = 0;      ///< T, tokens of a sequence
};

/// Refuses what exact arithmetic cannot do: degrees, G or B that are not powers of two, a T or C that 8 does not divide.
/// @throws UserError naming the first of them and what is possible.
void check_exact(const Layout& layout, const ModelConfig& config, const BatchShape& batch);

}  // namespace rankwise
