#include "lessons/01_single_device/options.hpp"

#include <fmt/format.h>

namespace rankwise {

void declare(OptionTable& table, SingleDeviceOptions& options)
{
  declare(table, static_cast<TrainingOptions&>(options));
  declare_output(table, options);
}

void check_lesson(const SingleDeviceOptions&, int N)
{
  if (N != 1)
    throw UserError(fmt::format("lesson 01 trains on one device, but was started with {} ranks.", N),
                    "Start it without mpirun or with -np 1.");
}

}  // namespace rankwise
