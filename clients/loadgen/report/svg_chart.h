#pragma once
#include <string>
#include <vector>

namespace recurve::loadgen {

// The values that an axis shows, ends included.
struct Axis {
  std::string label;  // with the unit
  double low = 0, high = 1;
  bool logarithmic = false;  // low > 0

  // Round ends around [low, high]: a linear axis from 0, a logarithmic one by whole steps of 1,
  // 2, 5.
  static Axis linear(std::string label, double high);
  static Axis log(std::string label, double low, double high);

  double position(double value) const;  // 0 at low, 1 at high; cut there
  std::vector<double> ticks() const;
};

struct XY {
  double x, y;
};

// A chart as an SVG element, of a fixed size, without script. Classes are styled by the page.
class SvgChart {
 public:
  SvgChart(std::string title, Axis x, Axis y);

  void line(const std::vector<XY>& points, const std::string& style, const std::string& name);
  void steps(const std::vector<XY>& points, const std::string& style, const std::string& name);
  void dots(const std::vector<XY>& points, double radius, const std::string& style,
            const std::string& name);
  void bar(double low, double high, double y, const std::string& style);  // from the x axis up
  void shade(double low, double high, const std::string& text);           // a stretch of the x axis
  void vertical(double x, const std::string& style, const std::string& text);
  void horizontal(double y, const std::string& style, const std::string& text);

  std::string svg() const;

 private:
  double px(double x) const;
  double py(double y) const;
  void name(const std::string& style, const std::string& text);
  std::string frame() const;

  std::string title_;
  Axis x_, y_;
  std::string marks_;   // what was drawn
  std::string legend_;  // names of lines and dots
  double legend_at_ = 0;
  int texts_above_ = 0;  // of vertical lines, which keep out of each other's way
};

// For text between tags and in attributes.
std::string html_escape(const std::string& text);

}  // namespace recurve::loadgen
