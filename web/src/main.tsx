import { render } from 'preact';
import { App } from './App';
import { takeToken } from './api';
import './style.css';

takeToken();
render(<App />, document.getElementById('app') as HTMLElement);
