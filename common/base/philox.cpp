#include "common/base/philox.hpp"

#include <cmath>

#include "common/base/portable_math.hpp"

namespace rankwise {

double normal(std::uint32_t word_0, std::uint32_t word_1)
{
  return std::sqrt(-2 * portable::log(uniform(word_0))) * portable::cos_pi(2 * uniform(word_1));
}

}  // namespace rankwise
