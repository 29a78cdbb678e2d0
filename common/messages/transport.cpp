#include "common/messages/transport.hpp"

#include <array>

namespace rankwise {

namespace {

thread_local const CollectiveLabel* innermost = nullptr;

}  // namespace

CollectiveLabel::CollectiveLabel(std::string_view text) : text_(text), outer_(innermost)
{
  innermost = this;
}

CollectiveLabel::~CollectiveLabel()
{
  innermost = outer_;
}

std::string_view CollectiveLabel::current()
{
  return innermost != nullptr ? std::string_view(innermost->text_) : std::string_view();
}

void Transport::send(const Tensor& data, int to, SourceLocation where)
{
  const Transfer transfer{Transfer::Direction::send, data, to, where};
  finish(start({&transfer, 1}));
}

void Transport::receive(const Tensor& data, int from, SourceLocation where)
{
  const Transfer transfer{Transfer::Direction::receive, data, from, where};
  finish(start({&transfer, 1}));
}

void Transport::exchange(const Tensor& sent, int to, const Tensor& received, int from, SourceLocation where)
{
  const std::array transfers{Transfer{Transfer::Direction::receive, received, from, where},
                             Transfer{Transfer::Direction::send, sent, to, where}};
  finish(start(transfers));
}

}  // namespace rankwise
