def pytest_addoption(parser):
    parser.addoption("--answers", type=int, default=600, help="to draw under random schemas")
