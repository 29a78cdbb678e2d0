// A library that test_late_binding is not linked to.

extern "C" int late_answer()
{
  return 42;
}
