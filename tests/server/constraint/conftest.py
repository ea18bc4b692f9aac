def pytest_addoption(parser):
    parser.addoption("--answers", type=int, default=600, help="to draw under random schemas")
    parser.addoption("--vocabulary", help="a tokenizer's folder, for the times of masks")
    parser.addoption("--each", type=int, default=4, help="schemas of MaskBench whose masks are timed and whose forced tokens are counted: every so many")
