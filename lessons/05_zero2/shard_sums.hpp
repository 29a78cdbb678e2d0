#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpt2/arithmetic.hpp"

/// @file
/// Sums of the gradients of what one rank owns.

namespace rankwise {

/// What is added up of the gradients of a rank's segments; of each one its elements, and where the token embedding lies
/// among them.
/// @param all  of all gradients of the model.
/// @param own  the segments, of the same flat vector.
std::vector<GradientLayout> layouts_of(const GradientLayout& all, const std::vector<Range>& own);

/// A sum for each layout; @p kernels, @p stream and @p memory outlive them.
std::vector<std::unique_ptr<GradientSum>> make_sums(const Arithmetic& arithmetic, const Kernels& kernels,
                                                    Stream& stream, const DeviceMemory& memory,
                                                    const std::vector<GradientLayout>& layouts);

/// The bytes that make_sums() takes by category, when @p passes come in order.
CategoryBytes sum_bytes(const Arithmetic& arithmetic, const std::vector<GradientLayout>& layouts,
                        std::int64_t passes);

}  // namespace rankwise
