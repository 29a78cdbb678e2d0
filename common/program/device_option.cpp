#include "common/program/device_option.hpp"

namespace rankwise {

void declare_device(OptionTable& table, DeviceKind& device)
{
  table.add_choice<DeviceKind>("Execution", "device", device,
                               {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}},
                               "device to compute on; cuda: rank r of a machine with d GPUs has GPU r mod d");
}

}  // namespace rankwise
