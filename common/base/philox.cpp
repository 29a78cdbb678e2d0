#include "common/base/philox.hpp"

#include <cmath>
#include <numbers>

namespace rankwise {

double normal(std::uint32_t word_0, std::uint32_t word_1)
{
  return std::sqrt(-2 * std::log(uniform(word_0))) * std::cos(2 * std::numbers::pi * uniform(word_1));
}

}  // namespace rankwise
